/* cli/cmd_inspect.c - cairn inspect FILE: the tensors of a safetensors or GGUF file with dtype,
 * shape and sha256 of their bytes as stored. Exit 0 listed; 1 refused (says why); 2 usage. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "base/fs.h"
#include "base/json.h"
#include "base/sha256.h"
#include "cli/commands.h"
#include "tensor/gguf.h"
#include "tensor/safetensors.h"
#include "tensor/tensor.h"

enum { STEP = 4 << 20 };

struct row {
    const char *name;
    size_t name_len;
    const char *dtype;
    int ndim;
    const int64_t *shape;
    uint64_t offset, bytes; /* in the file */
    char sha256[SHA256_HEX];
};

struct listing {
    const char *format;
    json_t *facts; /* what else the file says */
    struct row *rows;
    size_t n;
    uint64_t total;
};

static int hash_row(int fd, struct row *r, unsigned char *block, struct sha256 *h, struct err *e)
{
    for (uint64_t at = 0; at < r->bytes; at += STEP) {
        size_t n = r->bytes - at < STEP ? (size_t)(r->bytes - at) : STEP;

        if (fs_read_at(fd, block, n, (int64_t)(r->offset + at), e) < 0)
            return -1;
        sha256_update(h, block, n);
    }
    sha256_hex(h, r->sha256);
    return 0;
}

static int hash_rows(struct cli *cli, int fd, struct listing *l, struct err *e)
{
    struct cli_progress bar = {.cli = cli, .label = "hash"};
    unsigned char *block = malloc(STEP);
    struct sha256 *h = sha256_new();
    uint64_t done = 0;
    int rc = -1;

    if (!block || !h) {
        err_nomem(e);
        goto done;
    }
    for (size_t i = 0; i < l->n; i++) {
        if (hash_row(fd, &l->rows[i], block, h, e) < 0)
            goto done;
        done += l->rows[i].bytes;
        cli_progress_update(&bar, done, l->total);
    }
    rc = 0;

done:
    cli_progress_end(&bar);
    free(block);
    sha256_free(h);
    return rc;
}

static json_t *row_json(const struct row *r)
{
    json_t *shape = json_array();

    for (int i = 0; i < r->ndim; i++)
        json_array_append_new(shape, json_integer(r->shape[i]));
    return json_pack("{s:o*, s:s, s:o, s:I, s:I, s:s}", "name", json_stringn(r->name, r->name_len),
                     "dtype", r->dtype, "shape", shape, "offset", (json_int_t)r->offset, "bytes",
                     (json_int_t)r->bytes, "sha256", r->sha256);
}

static int print_json(struct cli *cli, const char *file, struct listing *l)
{
    json_t *list = json_array();

    for (size_t i = 0; i < l->n; i++)
        json_array_append_new(list, row_json(&l->rows[i]));
    return cli_print_json(cli, json_pack("{s:o, s:s, s:O, s:o}", "file", json_repaired(file),
                                         "format", l->format, "facts", l->facts, "tensors", list));
}

/* A name may hold any character; a table line takes none that moves the cursor. */
static void print_name(struct cli_table *t, const struct row *r)
{
    char *name = malloc(r->name_len + 1);

    for (size_t i = 0; name && i < r->name_len; i++)
        name[i] = (unsigned char)r->name[i] < 0x20 || r->name[i] == 0x7f ? '?' : r->name[i];
    if (name)
        name[r->name_len] = 0;
    cli_table_cell(t, "%s", name ? name : "");
    free(name);
}

static void print_facts(struct cli *cli, const struct listing *l)
{
    const char *key;
    json_t *v;

    json_object_foreach (l->facts, key, v) {
        char *text = json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT);

        fprintf(cli->out, "%s: %s\n", key, text ? text : "?");
        free(text);
    }
}

static int print_table(struct cli *cli, const char *file, const struct listing *l)
{
    struct cli_table *t = cli_table_new(5, "llrrl");
    char shape[160], size[24];

    fprintf(cli->out, "%s: %s, %zu tensors, %s of data\n", file, l->format, l->n,
            cli_bytes(size, l->total));
    print_facts(cli, l);
    cli_table_cell(t, "NAME");
    cli_table_cell(t, "DTYPE");
    cli_table_cell(t, "SHAPE");
    cli_table_cell(t, "BYTES");
    cli_table_cell(t, "SHA256");
    for (size_t i = 0; i < l->n; i++) {
        const struct row *r = &l->rows[i];

        print_name(t, r);
        tensor_shape_str(r->ndim, r->shape, shape, sizeof shape);
        cli_table_cell(t, "%s", r->dtype);
        cli_table_cell(t, "%s", shape);
        cli_table_cell(t, "%" PRIu64, r->bytes);
        cli_table_cell(t, "%s", r->sha256);
    }
    cli_table_print(t, cli->out);
    return ferror(cli->out) ? EXIT_FAILED : EXIT_OK;
}

static int show(struct cli *cli, const char *file, int fd, struct listing *l, struct err *e)
{
    for (size_t i = 0; i < l->n; i++)
        l->total += l->rows[i].bytes;
    if (hash_rows(cli, fd, l, e) < 0)
        return cli_fail(cli, e);
    return cli->json ? print_json(cli, file, l) : print_table(cli, file, l);
}

/* ---- the two formats ---- */

static int alloc_rows(struct listing *l, size_t n, struct err *e)
{
    l->n = n;
    l->rows = calloc(n + 1, sizeof *l->rows);
    return l->rows ? 0 : err_nomem(e);
}

static json_t *st_facts(const struct st_index *ix)
{
    json_t *meta = json_object();

    for (size_t i = 0; i < ix->n_meta; i++)
        json_object_setn_new(meta, ix->meta[i].key, ix->meta[i].key_len,
                             json_stringn(ix->meta[i].value, ix->meta[i].value_len));
    return json_pack("{s:I, s:b, s:o}", "data_start", (json_int_t)ix->data_start, "canonical",
                     ix->canonical, "metadata", meta);
}

static int inspect_safetensors(struct cli *cli, const char *file, int fd, struct err *e)
{
    struct listing l = {.format = "safetensors"};
    struct st_index ix = {0};
    int rc = EXIT_FAILED;

    if (st_index_read(&ix, fd, e) < 0) {
        err_wrap(e, "%s", file);
        return cli_fail(cli, e);
    }
    l.facts = st_facts(&ix);
    if (alloc_rows(&l, ix.n, e) < 0) {
        rc = cli_fail(cli, e);
        goto done;
    }
    for (size_t i = 0; i < ix.n; i++) {
        const struct st_tensor *t = &ix.tensors[i];

        l.rows[i] = (struct row){.name = t->name,
                                 .name_len = t->name_len,
                                 .dtype = dtype_name(t->dtype),
                                 .ndim = t->ndim,
                                 .shape = t->shape,
                                 .offset = ix.data_start + t->offset,
                                 .bytes = t->bytes};
    }
    rc = show(cli, file, fd, &l, e);

done:
    json_decref(l.facts);
    free(l.rows);
    st_index_release(&ix);
    return rc;
}

/* Short values only: a vocabulary is not a fact to read. */
static json_t *gguf_facts(const struct gguf *g)
{
    json_t *facts = json_pack("{s:I}", "version", (json_int_t)gguf_version(g));
    struct err ignored = {0};
    struct gguf_str text;
    int64_t number;
    double real;

    for (size_t i = 0; i < gguf_n_keys(g); i++) {
        enum gguf_type type;
        struct gguf_str key = gguf_key_at(g, i, &type);
        char name[256];
        json_t *v = NULL;

        if (key.len >= sizeof name || memchr(key.s, 0, key.len))
            continue;
        snprintf(name, sizeof name, "%.*s", (int)key.len, key.s);
        if (type == GGUF_STRING && gguf_get_str(g, name, &text, &ignored) == 0 && text.len <= 200)
            v = json_stringn(text.s, text.len);
        else if (gguf_get_int(g, name, &number, &ignored) == 0)
            v = json_integer(number);
        else if (gguf_get_float(g, name, &real, &ignored) == 0)
            v = json_real(real);
        if (v)
            json_object_setn_new(facts, key.s, key.len, v);
    }
    return facts;
}

static int inspect_gguf(struct cli *cli, const char *file, int fd, struct err *e)
{
    struct listing l = {.format = "GGUF"};
    struct gguf *g = gguf_open(fd, e);
    int rc = EXIT_FAILED;

    if (!g) {
        err_wrap(e, "%s", file);
        return cli_fail(cli, e);
    }
    l.facts = gguf_facts(g);
    if (alloc_rows(&l, gguf_n_tensors(g), e) < 0) {
        rc = cli_fail(cli, e);
        goto done;
    }
    for (size_t i = 0; i < l.n; i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);

        l.rows[i] = (struct row){.name = t->name.s,
                                 .name_len = t->name.len,
                                 .dtype = gguf_type_name(t->type),
                                 .ndim = t->ndim,
                                 .shape = t->shape,
                                 .offset = t->offset,
                                 .bytes = t->bytes};
    }
    rc = show(cli, file, fd, &l, e);

done:
    json_decref(l.facts);
    free(l.rows);
    gguf_close(g);
    return rc;
}

/* By the first bytes; but what calls itself .safetensors is held to that. */
static bool is_gguf(const char *path, int fd)
{
    const char *dot = strrchr(path, '.');
    char magic[4] = {0};

    if (dot && strcmp(dot, ".safetensors") == 0)
        return false;
    return pread(fd, magic, sizeof magic, 0) == sizeof magic && memcmp(magic, "GGUF", 4) == 0;
}

int cmd_inspect(struct cli *cli, int argc, char **argv)
{
    struct err e = {0};
    int fd, rc = cli_options(cli, &argc, argv, NULL, 1, 1);

    if (rc >= 0)
        return rc;
    fd = open(argv[1], O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0) {
        err_io(&e, "open %s", argv[1]);
        return cli_fail(cli, &e);
    }
    if (is_gguf(argv[1], fd))
        rc = inspect_gguf(cli, argv[1], fd, &e);
    else
        rc = inspect_safetensors(cli, argv[1], fd, &e);
    close(fd);
    return rc;
}
