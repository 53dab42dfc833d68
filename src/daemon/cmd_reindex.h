/* daemon/cmd_reindex.h - cairn reindex: the catalogue's rows of checkpoints from the directories.
 *
 * Offline: it takes the lock of the checkpoint root that a server would hold. Directories come from
 * the options, else from the environment as for the server (daemon/config.h). */
#ifndef DAEMON_CMD_REINDEX_H
#define DAEMON_CMD_REINDEX_H

#include "cli/cli.h"

cli_fn cmd_reindex;
#endif
