/* cli/cmd_tokenize.c - cairn tokenize DIR: standard input to token ids and back, with the tokenizer
 * of a model directory. The ids are one JSON array on a line; with --decode the input is such an
 * array. */
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "cli/commands.h"
#include "text/tokenizer.h"

enum { INPUT_MAX = 256 << 20, INPUT_STEP = 1 << 20 };

static int read_input(struct buf *in, struct err *e)
{
    ssize_t n = 0;

    do {
        char *to = buf_reserve(in, INPUT_STEP);

        if (!to)
            return err_nomem(e);
        n = read(STDIN_FILENO, to, INPUT_STEP);
        if (n < 0 && errno != EINTR)
            return err_io(e, "read standard input");
        in->len += n > 0 ? (size_t)n : 0;
        if (in->len > INPUT_MAX)
            return err_set(e, ERR_SPACE,
                           "standard input has more than %d MiB; tokenize it in parts",
                           INPUT_MAX >> 20);
    } while (n != 0);
    return 0;
}

static struct tokenizer *open_tokenizer(const char *dir, struct err *e)
{
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    struct tokenizer *t;

    if (fd < 0) {
        err_io(e, "open the model directory %s", dir);
        return NULL;
    }
    t = tokenizer_open(fd, e);
    if (!t)
        err_wrap(e, "%s", dir);
    close(fd);
    return t;
}

static int encode(struct cli *cli, const struct tokenizer *t, const struct buf *in, unsigned flags,
                  struct err *e)
{
    struct token_list ids = {0};
    int rc = tokenizer_encode(t, buf_str(in), in->len, flags, &ids, e);

    if (rc == 0) {
        fputc('[', cli->out);
        for (size_t i = 0; i < ids.n; i++)
            fprintf(cli->out, i ? ", %d" : "%d", ids.ids[i]);
        fputs("]\n", cli->out);
    }
    token_list_release(&ids);
    return rc;
}

/* A JSON array of ids, each with a token. */
static int parse_ids(const struct tokenizer *t, const struct buf *in, struct token_list *ids,
                     struct err *e)
{
    json_t *list = json_parse(buf_str(in), in->len, e);
    const json_t *item;
    size_t i;
    int rc = list ? 0 : -1;

    if (list && !json_is_array(list))
        rc = err_set(e, ERR_ARG, "standard input is not a JSON array of ids");
    json_array_foreach (list, i, item) {
        int64_t id = json_integer_value(item);

        if (!json_is_integer(item) || id < 0 || id >= tokenizer_vocab_size(t))
            rc = err_set(e, ERR_ARG, "element %zu is not an id in [0, %d)", i,
                         tokenizer_vocab_size(t));
        else
            rc = token_list_push(ids, (int32_t)id, e);
        if (rc < 0)
            break;
    }
    json_decref(list);
    return rc;
}

static int decode(struct cli *cli, const struct tokenizer *t, const struct buf *in, struct err *e)
{
    struct token_list ids = {0};
    struct buf text = {0};
    int rc = parse_ids(t, in, &ids, e);

    if (rc == 0) {
        tokenizer_decode(t, ids.ids, ids.n, 0, &text);
        if (text.failed)
            rc = err_nomem(e);
        else if (cli->json &&
                 cli_print_json(cli, json_stringn(buf_str(&text), text.len)) != EXIT_OK)
            rc = err_set(e, ERR_IO, "the result cannot be written");
        else if (!cli->json)
            fwrite(buf_str(&text), 1, text.len, cli->out);
    }
    token_list_release(&ids);
    buf_release(&text);
    return rc;
}

int cmd_tokenize(struct cli *cli, int argc, char **argv)
{
    bool special = false, as_text = false, back = false;
    const struct cli_opt opts[] = {
        {.name = "add-special",
         .help = "put the tokens that begin a text (BOS) in front",
         .flag = &special},
        {.name = "special-as-text",
         .help = "read special tokens in the text as plain text",
         .flag = &as_text},
        {.name = "decode",
         .help = "the input is a JSON array of ids, the output text",
         .flag = &back},
        {0},
    };
    struct err e = {0};
    struct buf in = {0};
    struct tokenizer *t;
    int rc = cli_options(cli, &argc, argv, opts, 1, 1);

    if (rc >= 0)
        return rc;
    t = open_tokenizer(argv[1], &e);
    rc = t ? read_input(&in, &e) : -1;
    if (rc == 0)
        rc = back ? decode(cli, t, &in, &e)
                  : encode(cli, t, &in,
                           (special ? TOK_ADD_SPECIAL : 0u) | (as_text ? TOK_SPECIAL_AS_TEXT : 0u),
                           &e);
    if (rc == 0 && fflush(cli->out) != 0)
        rc = err_io(&e, "write the result");
    buf_release(&in);
    tokenizer_unref(t);
    return rc < 0 ? cli_fail(cli, &e) : EXIT_OK;
}
