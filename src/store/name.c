#include "store/name.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"

static const char step_word[] = "step-";
enum { STEP_WORD = sizeof step_word - 1 };

static bool is_alnum(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
}

/* Digits only, no leading zero (except "0" itself), at most CKPT_STEP_MAX. */
static bool parse_step(const char *text, size_t len, int64_t *step)
{
    int64_t n = 0;

    if (len == 0 || len > 16 || (len > 1 && text[0] == '0'))
        return false;
    for (size_t i = 0; i < len; i++) {
        if (text[i] < '0' || text[i] > '9')
            return false;
        n = n * 10 + (text[i] - '0');
    }
    *step = n;
    return n <= CKPT_STEP_MAX;
}

bool ckpt_name_parse(const char *text, size_t len, struct ckpt_name *out)
{
    const char *step, *run;
    size_t run_len;

    if (memchr(text, 0, len))
        return false;
    step = memrchr(text, ':', len);
    if (!step || step == text)
        return false;
    run = memrchr(text, ':', (size_t)(step - text));
    if (!run || run == text)
        return false;
    run_len = (size_t)(step - run) - 1;
    out->base_len = (size_t)(run - text);
    step++;
    len -= (size_t)(step - text);
    if (len < STEP_WORD || memcmp(step, step_word, STEP_WORD) != 0 ||
        !parse_step(step + STEP_WORD, len - STEP_WORD, &out->step) ||
        !ckpt_run_id_may_load(run + 1, run_len))
        return false;
    memcpy(out->run_id, run + 1, run_len);
    out->run_id[run_len] = 0;
    return true;
}

void ckpt_name_write(struct buf *b, const char *base_model, const char *run_id, int64_t step)
{
    buf_printf(b, "%s:%s:%s%" PRId64, base_model, run_id, step_word, step);
}

size_t ckpt_name_chars(const char *name)
{
    size_t n = 0;

    for (; *name; name++)
        if (((unsigned char)*name & 0xc0) != 0x80)
            n++;
    return n;
}

void ckpt_step_dir(char out[CKPT_STEP_DIR], int64_t step)
{
    snprintf(out, CKPT_STEP_DIR, "%s%06" PRId64, step_word, step);
}

bool ckpt_step_dir_parse(const char *text, int64_t *step)
{
    char again[CKPT_STEP_DIR];
    const char *digits = text + STEP_WORD;
    size_t len = strlen(text);

    if (len < STEP_WORD + 6 || strncmp(text, step_word, STEP_WORD) != 0)
        return false;
    len -= STEP_WORD;
    while (len > 1 && *digits == '0') {
        digits++;
        len--;
    }
    if (!parse_step(digits, len, step))
        return false;
    ckpt_step_dir(again, *step);
    return strcmp(again, text) == 0;
}

void ckpt_path(char out[CKPT_PATH_MAX], const char *run_id, int64_t step)
{
    char dir[CKPT_STEP_DIR];

    ckpt_step_dir(dir, step);
    snprintf(out, CKPT_PATH_MAX, "%.*s/%s", CKPT_RUN_MAX, run_id, dir);
}

bool ckpt_run_id_may_save(const char *run_id, size_t len)
{
    if (len < 1 || len > 128 || !is_alnum(run_id[0]))
        return false;
    for (size_t i = 1; i < len; i++)
        if (!is_alnum(run_id[i]) && run_id[i] != '.' && run_id[i] != '_' && run_id[i] != '-')
            return false;
    return true;
}

bool ckpt_run_id_may_load(const char *run_id, size_t len)
{
    if (len < 1 || len > CKPT_RUN_MAX || run_id[0] == 0)
        return false;
    if (run_id[0] == '.' && (len == 1 || (len == 2 && run_id[1] == '.')))
        return false;
    return !memchr(run_id, '/', len) && !memchr(run_id, 0, len) && !memchr(run_id, ':', len);
}
