/* service/load_dir.c - may this checkpoint directory be served as it is? (spec 5.6, row 19)
 *
 * Decided before anything is changed, in this order: dtype of the weights, remote code,
 * completeness, quantization, the dtype that config.json would cast to, files that are no files,
 * length of the path. For full reloads only. */
#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/fs.h"
#include "base/json.h"
#include "model/config.h"
#include "model/model.h"
#include "service/load_op.h"
#include "service/service.h"
#include "store/roots.h"
#include "tensor/weights.h"

enum { CONFIG_MAX = 16 << 20, ENTRIES_MAX = 10000, DEPTH_MAX = 32, SHOWN_MAX = 100 };

static int not_loadable(struct refusal *r, const char *reason, json_t *facts, const char *sentence)
{
    json_t *details = facts ? facts : json_object();

    json_object_set_new(details, "reason", json_string(reason));
    return refuse_with(r, REFUSAL_CHECKPOINT_NOT_LOADABLE, details,
                       "The checkpoint cannot be loaded: %s Nothing was changed.", sentence);
}

/* ---- dtype of the weights ---- */

static int check_16_bit(const struct load_op *op, struct refusal *r)
{
    size_t counts[DTYPE_COUNT] = {0};
    char text[128], sentence[256];
    json_t *dtypes;

    st_index_dtypes(&op->index, counts, text, sizeof text);
    if (op->index.n && (counts[DTYPE_BF16] == op->index.n || counts[DTYPE_F16] == op->index.n))
        return 0;
    dtypes = json_object();
    for (int t = 0; t < DTYPE_COUNT; t++)
        if (counts[t])
            json_object_set_new(dtypes, dtype_name((enum dtype)t),
                                json_integer((json_int_t)counts[t]));
    snprintf(sentence, sizeof sentence, "its tensors must be all BF16 or all F16; they are %s.",
             text);
    return not_loadable(r, "dtype", json_pack("{s:o}", "dtypes", dtypes), sentence);
}

/* ---- config.json ---- */

static int check_remote_code(const struct load_op *op, const json_t *config, bool native,
                             struct refusal *r)
{
    const json_t *map = json_object_get(config, "auto_map");
    bool allowed = op->trust_remote_code && op->op.owner && op->op.owner->role == ROLE_OPERATOR;

    if (!map || json_is_null(map))
        return 0;
    if (!allowed)
        return not_loadable(
            r, "remote_code", json_pack("{s:b}", "native", native),
            "its config.json names code of its own (auto_map); an operator may load "
            "it with trust_remote_code, which uses the built-in implementation.");
    if (native)
        return 0;
    return not_loadable(r, "remote_code", json_pack("{s:b}", "native", 0),
                        "its config.json names code of its own, and there is no built-in "
                        "implementation of its model_type.");
}

static bool has(int dir_fd, const char *name)
{
    struct stat st;

    return fstatat(dir_fd, name, &st, 0) == 0 && S_ISREG(st.st_mode);
}

static bool has_tokenizer(int dir_fd)
{
    return has(dir_fd, "tokenizer.json") || has(dir_fd, "tokenizer.model") ||
           has(dir_fd, "spiece.model") || has(dir_fd, "vocab.txt") ||
           (has(dir_fd, "vocab.json") && has(dir_fd, "merges.txt"));
}

static int check_complete(const struct load_op *op, const json_t *config, struct refusal *r)
{
    const char *type = json_string_value(json_object_get(config, "model_type"));
    json_t *missing = json_array();

    if (!json_is_object(config))
        json_array_append_new(missing, json_string("config.json"));
    else if (!type || !*type)
        json_array_append_new(missing, json_string("model_type in config.json"));
    if (!has_tokenizer(op->at.dir_fd))
        json_array_append_new(missing, json_string("tokenizer.json"));
    if (json_array_size(missing) == 0) {
        json_decref(missing);
        return 0;
    }
    return not_loadable(r, "incomplete", json_pack("{s:o}", "missing", missing),
                        "files that a model needs are missing or unreadable (details.missing).");
}

static int check_quantized(const json_t *config, struct refusal *r)
{
    const json_t *q = json_object_get(config, "quantization_config");

    if (!q || json_is_null(q))
        return 0;
    return not_loadable(r, "quantized", NULL,
                        "its config.json declares a quantization_config, so it would not be served "
                        "as the verified bytes.");
}

/* "bfloat16", "float16", another word as it stands, or NULL for none. */
static const char *dtype_of_key(const json_t *config, const char *key)
{
    const char *word = json_string_value(json_object_get(config, key));

    if (!word)
        return NULL;
    if (strncmp(word, "torch.", 6) == 0)
        word += 6;
    return strcmp(word, "half") == 0 ? "float16" : word;
}

static int check_cast(const struct load_op *op, const json_t *config, struct refusal *r)
{
    const char *weights = op->index.tensors[0].dtype == DTYPE_F16 ? "float16" : "bfloat16";
    const char *a = dtype_of_key(config, "dtype"), *b = dtype_of_key(config, "torch_dtype");
    bool differ = a && b && strcmp(a, b) != 0;
    const char *load = a ? a : b ? b : "bfloat16"; /* the default of loaders */

    if (differ && strcmp(a, weights) == 0)
        load = b; /* what the loaders that read this key would do */
    if (strcmp(load, weights) == 0)
        return 0;
    return not_loadable(
        r, "dtype", json_pack("{s:s, s:s}", "load_dtype", load, "weights_dtype", weights),
        differ ? "dtype and torch_dtype in its config.json differ."
               : "its config.json would make a loader cast the weights; record their "
                 "dtype there.");
}

/* ---- files ---- */

struct walk {
    int root_fd;    /* links may lead anywhere beneath it */
    struct buf at;  /* path of the directory being read, below the root */
    size_t prefix;  /* bytes of it that lie above the step directory */
    json_t *unsafe; /* names relative to the step directory */
    int entries;
};

static void note_unsafe(struct walk *w, const char *name)
{
    struct buf full = {0};

    buf_printf(&full, "%s%s%s", buf_str(&w->at) + w->prefix, w->at.len > w->prefix ? "/" : "",
               name);
    if (json_array_size(w->unsafe) < SHOWN_MAX)
        json_array_append_new(w->unsafe, json_string(buf_str(&full) + (buf_str(&full)[0] == '/')));
    buf_release(&full);
}

/* A link is fine when what it names lies beneath the root and is a file or a directory. */
static bool link_inside(struct walk *w, const char *name)
{
    struct buf path = {0};
    struct err e = {0};
    struct stat st;
    int fd;
    bool fine;

    buf_printf(&path, "%s/%s", buf_str(&w->at), name);
    fd = fs_open_beneath(w->root_fd, buf_str(&path), O_PATH | O_CLOEXEC, 0, FS_LINKS_INSIDE, &e);
    fine = fd >= 0 && fstat(fd, &st) == 0 && (S_ISREG(st.st_mode) || S_ISDIR(st.st_mode));
    fs_close(fd);
    buf_release(&path);
    return fine;
}

static void walk_dir(struct walk *w, int fd, int depth);

static void walk_entry(struct walk *w, int dir_fd, const char *name, int depth)
{
    size_t len = w->at.len;
    struct stat st;
    int fd;

    if (fstatat(dir_fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return;
    if (S_ISREG(st.st_mode) || (S_ISLNK(st.st_mode) && link_inside(w, name)))
        return;
    if (!S_ISDIR(st.st_mode) || depth >= DEPTH_MAX) {
        note_unsafe(w, name);
        return;
    }
    fd = openat(dir_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return;
    buf_printf(&w->at, "/%s", name);
    walk_dir(w, fd, depth + 1);
    w->at.len = len;
    w->at.data[len] = '\0';
}

/* Consumes fd. */
static void walk_dir(struct walk *w, int fd, int depth)
{
    DIR *d = fdopendir(fd);
    struct dirent *entry;

    if (!d) {
        close(fd);
        return;
    }
    while ((entry = readdir(d))) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        if (++w->entries > ENTRIES_MAX) {
            note_unsafe(w, "(more than 10000 entries)");
            break;
        }
        walk_entry(w, dirfd(d), entry->d_name, depth);
    }
    closedir(d);
}

static int check_files(const struct load_op *op, struct refusal *r)
{
    struct err e = {0};
    struct walk w = {.root_fd = roots_dir(op->op.s->roots, op->at.root, &e)};
    int fd = w.root_fd < 0 ? -1 : openat(op->at.dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    if (fd < 0) {
        if (w.root_fd >= 0)
            err_io(&e, "open %s", op->at.path);
        fs_close(w.root_fd);
        return refuse_internal(r, &e);
    }
    w.unsafe = json_array();
    buf_add_str(&w.at, op->at.path);
    w.prefix = w.at.len;
    walk_dir(&w, fd, 0);
    close(w.root_fd);
    buf_release(&w.at);
    if (json_array_size(w.unsafe) == 0) {
        json_decref(w.unsafe);
        return 0;
    }
    return not_loadable(r, "unsafe_file", json_pack("{s:o}", "files", w.unsafe),
                        "it holds entries that are neither files nor directories, or links that "
                        "lead out of the checkpoint root (details.files).");
}

static int check_path_length(struct load_op *op, struct refusal *r)
{
    struct err e = {0};
    size_t chars;

    op->dir = fs_path_of(op->at.dir_fd, &e);
    if (!op->dir)
        return refuse_internal(r, &e);
    chars = ckpt_name_chars(op->dir);
    if (chars <= CATALOGUE_PATH_MAX_CHARS)
        return 0;
    return not_loadable(r, "path_length",
                        json_pack("{s:I, s:i}", "length", (json_int_t)chars, "max_length",
                                  CATALOGUE_PATH_MAX_CHARS),
                        "the real path of its directory is longer than a model row holds.");
}

/* ---- the implementation ---- */

/* The file that could not be used, by the word of image_files_read; the two configurations by the
 * sentence, which begins with the name. */
static const char *unusable_file(const char *reason, const char *sentence)
{
    static const char generation[] = "generation_config.json";
    static const struct {
        const char *reason, *file;
    } files[] = {
        {"companions", "companion files"},
        {"tokenizer", "tokenizer.json"},
        {"chat_template", "chat template"},
    };

    for (size_t i = 0; reason && i < sizeof files / sizeof *files; i++)
        if (strcmp(files[i].reason, reason) == 0)
            return files[i].file;
    return strncmp(sentence, generation, sizeof generation - 1) == 0 ? generation : "config.json";
}

/* What a load would find out after the old weights were gone: read it now. */
static int read_files(struct load_op *op, struct refusal *r)
{
    const char *reason = NULL, *file = "model.safetensors";
    struct err e = {0};
    char sentence[400];

    op->files = image_files_read(op->at.dir_fd, op->dir, op->trust_remote_code, &reason, &e);
    if (op->files && model_check_index(op->files->config, &op->index, &reason, &e) == 0)
        return 0;
    if (e.code == ERR_NOMEM || e.code == ERR_IO)
        return refuse_internal(r, &e);
    if (!op->files)
        file = unusable_file(reason, e.msg);
    snprintf(sentence, sizeof sentence, "%s.", e.msg);
    return not_loadable(r, "incomplete",
                        json_pack("{s:[s], s:s}", "missing", file, "problem", e.msg), sentence);
}

static bool is_native(const json_t *config)
{
    struct model_config *parsed = malloc(sizeof *parsed);
    const char *reason = NULL;
    struct err e = {0};
    bool native = parsed && json_is_object(config) &&
                  model_config_parse(parsed, config, NULL, &reason, &e) == 0;

    free(parsed);
    return native;
}

int check_load_dir(void *ctx, struct refusal *r)
{
    struct load_op *op = ctx;
    struct err e = {0};
    json_t *config;
    int rc = -1;

    if (op->in_place)
        return 0;
    config = json_parse_file(op->at.dir_fd, "config.json", CONFIG_MAX, &e);
    if (check_16_bit(op, r) == 0 && check_remote_code(op, config, is_native(config), r) == 0 &&
        check_complete(op, config, r) == 0 && check_quantized(config, r) == 0 &&
        check_cast(op, config, r) == 0 && check_files(op, r) == 0 && check_path_length(op, r) == 0)
        rc = read_files(op, r);
    json_decref(config);
    return rc;
}
