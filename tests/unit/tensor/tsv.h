/* tests/unit/tensor/tsv.h - walks a table of test cases: one tab-separated line at a time. */
#ifndef TESTS_TSV_H
#define TESTS_TSV_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { TSV_CELLS = 8 };

/* In text cells \\n, \\t and \\\\ stand for a line break, a tab and a backslash. */
static inline void tsv_unescape(char *cell)
{
    char *to = cell;

    for (const char *from = cell; *from; from++, to++) {
        *to = *from;
        if (*from == '\\' && strchr("nt\\", from[1]) && from[1]) {
            from++;
            *to = *from == 'n' ? '\n' : *from == 't' ? '\t' : '\\';
        }
    }
    *to = 0;
}

/* Calls fn for each line after the first; returns how many there were. */
static inline int tsv_each(const char *path, void (*fn)(char *cell[TSV_CELLS], void *arg),
                           void *arg)
{
    FILE *f = fopen(path, "r");
    static char line[16384];
    int rows = -1;

    assert_non_null(f);
    while (fgets(line, sizeof line, f)) {
        char *cell[TSV_CELLS] = {0}, *rest = line;

        line[strcspn(line, "\n")] = 0;
        for (int i = 0; i < TSV_CELLS && rest; i++)
            cell[i] = strsep(&rest, "\t");
        for (int i = 0; i < TSV_CELLS && cell[i]; i++)
            tsv_unescape(cell[i]);
        if (rows++ >= 0)
            fn(cell, arg);
    }
    fclose(f);
    return rows;
}
#endif
