/* Foreign bytes as the answer of a model that has tools, in each of the forms.
 *
 * What must hold: no crash and no leak; text and calls are the same whole and in pieces; arguments
 * are a JSON object. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "text/tool_call.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define CHECK(c)     \
    do {             \
        if (!(c))    \
            abort(); \
    } while (0)

static void on_text(void *arg, const char *text, size_t len)
{
    buf_add(arg, text, len);
}

static void on_call(void *arg, const char *name, const char *arguments)
{
    json_t *v = json_loads(arguments, JSON_ALLOW_NUL, NULL);

    CHECK(json_is_object(v));
    json_decref(v);
    buf_printf(arg, "\1%s %s\2", name, arguments);
}

static void read_answer(enum tool_form form, const json_t *tools, const char *text, size_t len,
                        size_t piece, struct buf *out)
{
    const struct tool_sink sink = {.arg = out, .text = on_text, .call = on_call};
    struct tool_reader r;

    tool_reader_init(&r, form, tools, &sink);
    for (size_t at = 0; at < len; at += piece)
        tool_reader_push(&r, text + at, len - at < piece ? len - at : piece);
    tool_reader_finish(&r);
    tool_reader_release(&r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    json_t *tools = json_pack("[{s:{s:s}}, {s:{s:s}}]", "function", "name", "f", "function", "name",
                              "get_weather");

    for (int form = TOOLS_TAGGED; form <= TOOLS_PYTHON; form++) {
        struct buf whole = {0}, pieces = {0};

        read_answer((enum tool_form)form, tools, (const char *)data, size, size + 1, &whole);
        read_answer((enum tool_form)form, tools, (const char *)data, size, 1 + size % 7, &pieces);
        CHECK(whole.len == pieces.len && memcmp(buf_str(&whole), buf_str(&pieces), whole.len) == 0);
        buf_release(&whole);
        buf_release(&pieces);
    }
    json_decref(tools);
    return 0;
}
