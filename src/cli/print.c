/* Tables, progress bars and units. */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>

#include "base/clock.h"
#include "cli/cli.h"

struct cli_table {
    int columns;
    const char *align;
    char **cells;
    size_t n, cap;
};

struct cli_table *cli_table_new(int columns, const char *align)
{
    struct cli_table *t = calloc(1, sizeof *t);

    if (!t)
        return NULL;
    t->columns = columns;
    t->align = align;
    return t;
}

/* A cell that could not be stored is printed empty. */
void cli_table_cell(struct cli_table *t, const char *fmt, ...)
{
    va_list ap;
    char *text = NULL;

    if (!t)
        return;
    if (t->n == t->cap) {
        size_t cap = t->cap ? t->cap * 2 : 64;
        char **grown = reallocarray(t->cells, cap, sizeof *grown);

        if (!grown)
            return;
        t->cells = grown;
        t->cap = cap;
    }
    va_start(ap, fmt);
    if (vasprintf(&text, fmt, ap) < 0)
        text = NULL;
    va_end(ap);
    t->cells[t->n++] = text;
}

/* Characters, not bytes: continuation bytes of UTF-8 do not count. */
static int width_of(const char *s)
{
    int n = 0;

    for (; s && *s; s++)
        n += ((unsigned char)*s & 0xc0) != 0x80;
    return n;
}

static int column_width(const struct cli_table *t, int column)
{
    int widest = 0;

    for (size_t i = (size_t)column; i < t->n; i += (size_t)t->columns)
        if (width_of(t->cells[i]) > widest)
            widest = width_of(t->cells[i]);
    return widest;
}

static void print_cell(FILE *out, const char *text, int width, bool right, bool last)
{
    int pad = width - width_of(text);

    if (right)
        fprintf(out, "%*s", pad, "");
    fputs(text ? text : "", out);
    if (!right && !last)
        fprintf(out, "%*s", pad, "");
    fputs(last ? "\n" : "  ", out);
}

static void free_table(struct cli_table *t)
{
    for (size_t i = 0; i < t->n; i++)
        free(t->cells[i]);
    free(t->cells);
    free(t);
}

void cli_table_print(struct cli_table *t, FILE *out)
{
    int *widths = t ? calloc((size_t)t->columns, sizeof *widths) : NULL;

    if (!t)
        return;
    for (int c = 0; widths && c < t->columns; c++)
        widths[c] = column_width(t, c);
    for (size_t i = 0; i < t->n; i++) {
        int c = (int)(i % (size_t)t->columns);

        print_cell(out, t->cells[i], widths ? widths[c] : 0, t->align[c] == 'r',
                   c + 1 == t->columns);
    }
    free(widths);
    free_table(t);
}

/* ---- progress ---- */

enum { BAR = 30, BESIDE_BAR = 40, COLUMNS = 80, REDRAW_NS = 100000000 };

static const double SPEED_FROM_S = 0.1; /* what is shorter says nothing about a speed */

static int columns_of(FILE *f)
{
    struct winsize w;

    return ioctl(fileno(f), TIOCGWINSZ, &w) == 0 && w.ws_col > 0 ? w.ws_col : COLUMNS;
}

/* The bar has as many places as the line leaves; a line that wraps could not be drawn over. */
static void write_bar(FILE *out, double part, int columns)
{
    int places = columns - BESIDE_BAR < BAR ? columns - BESIDE_BAR : BAR;

    if (places <= 0)
        return;
    fputc('[', out);
    for (int i = 0; i < places; i++)
        fputc(i < (int)(part * places) ? '#' : '.', out);
    fputs("] ", out);
}

static void draw(const struct cli_progress *p, uint64_t done, uint64_t total)
{
    double part = total ? (double)done / (double)total : 0,
           seconds = clock_ms_since(p->started_ns) / 1e3;
    int columns = columns_of(p->cli->err) - width_of(p->label);
    char size[24], speed[24];

    fprintf(p->cli->err, "\r\033[K%s  ", p->label);
    if (total == 0) {
        fputs(cli_duration(size, seconds), p->cli->err);
    } else {
        write_bar(p->cli->err, part, columns);
        fprintf(p->cli->err, "%3d%%  %s", (int)(part * 100), cli_bytes(size, done));
        if (seconds >= SPEED_FROM_S)
            fprintf(p->cli->err, "  %s/s", cli_bytes(speed, (uint64_t)((double)done / seconds)));
    }
    fflush(p->cli->err);
}

void cli_progress_update(struct cli_progress *p, uint64_t done, uint64_t total)
{
    int64_t now = clock_mono_ns();

    if (!p->started_ns)
        p->started_ns = now;
    if (!p->cli->terminal || now - p->drawn_ns < REDRAW_NS)
        return;
    p->drawn_ns = now;
    p->shown = true;
    draw(p, done, total);
}

void cli_progress_end(struct cli_progress *p)
{
    if (p->shown)
        fputs("\r\033[K", p->cli->err);
    p->shown = false;
}

/* ---- units ---- */

const char *cli_bytes(char out[24], uint64_t n)
{
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB", "PB", "EB"};
    double v = (double)n;
    size_t i = 0;

    while (v >= 999.95 && i + 1 < sizeof units / sizeof *units) {
        v /= 1000;
        i++;
    }
    snprintf(out, 24, i ? "%.1f %s" : "%.0f %s", v, units[i]);
    return out;
}

const char *cli_duration(char out[24], double seconds)
{
    if (seconds < 1)
        snprintf(out, 24, "%.0f ms", seconds * 1000);
    else if (seconds < 60)
        snprintf(out, 24, "%.1f s", seconds);
    else
        snprintf(out, 24, "%d min %d s", (int)seconds / 60, (int)seconds % 60);
    return out;
}
