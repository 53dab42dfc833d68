#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/utf8.h"

/* The only mutable state: set by log_setup before threads start, read-only afterwards. */
static enum log_level least_level = LOG_INFO;
static bool as_json;

static const char *const names[] = {"DEBUG", "INFO", "WARNING", "ERROR"};

void log_setup(enum log_level least, bool json)
{
    least_level = least;
    as_json = json;
}

static void emit(struct buf *b)
{
    buf_add_char(b, '\n');
    /* A log sink that fails never fails the operation. */
    if (!b->failed && write(STDERR_FILENO, b->data, b->len) < 0) {
    }
    buf_release(b);
}

void log_ev(enum log_level level, const char *event, const char *fmt, ...)
{
    struct buf b = {0};
    char text[1024], now[32];
    va_list ap;

    if (level < least_level)
        return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    utf8_repair(text); /* names of any bytes, cut anywhere */
    for (char *p = text; *p; p++)
        if ((unsigned char)*p < 0x20)
            *p = ' ';
    clock_iso8601(clock_wall_ms(), now);
    if (as_json) {
        buf_printf(&b, "{\"ts\":\"%s\",\"level\":\"%s\",\"event\":\"%s\",\"text\":", now,
                   names[level], event);
        json_write_str(&b, text, strlen(text));
        buf_add_char(&b, '}');
    } else {
        buf_printf(&b, "%s %-7s %s %s", now, names[level], event, text);
    }
    emit(&b);
}

void log_json(const char *line)
{
    struct buf b = {0};

    buf_add_str(&b, line);
    emit(&b);
}
