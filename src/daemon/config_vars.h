/* daemon/config_vars.h - the table of variables that become settings, each with its range.
 *
 * Before threads exist. Strings of the settings are borrowed from the environment. */
#ifndef DAEMON_CONFIG_VARS_H
#define DAEMON_CONFIG_VARS_H

#include <stdbool.h>

struct buf;
struct err;
struct settings;

/* Defaults, then the environment over them. -1: a value is wrong, and *e names its variable.
 * Variables of our prefixes that are not known are told in *warnings, one a line. */
int config_vars_read(struct settings *s, struct buf *warnings, struct err *e);

const char *config_env(const char *name); /* NULL where it is not set or empty */
int config_env_bool(const char *name, const char *text, bool *to, struct err *e);
#endif
