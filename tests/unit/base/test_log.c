/* Log lines: one line each, and valid JSON, whatever the text holds. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "base/log.h"

/* What log_ev writes for the text, as JSON; owned. */
static json_t *logged(const char *text)
{
    FILE *file = tmpfile();
    int before = dup(STDERR_FILENO);
    char line[4096] = "";
    json_t *o;
    size_t n;

    assert_non_null(file);
    log_setup(LOG_INFO, true);
    dup2(fileno(file), STDERR_FILENO);
    log_ev(LOG_WARNING, "test", "%s", text);
    dup2(before, STDERR_FILENO);
    close(before);
    rewind(file);
    n = fread(line, 1, sizeof line - 1, file);
    fclose(file);
    assert_true(n > 0 && line[n - 1] == '\n');
    assert_ptr_equal(strchr(line, '\n'), line + n - 1);
    o = json_loads(line, JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(o);
    return o;
}

static void a_line_is_json_whatever_bytes_it_names(void **state)
{
    char long_text[2048];
    json_t *o = logged("name=\"a\"\n\xff{\"event\":\"weights_audit\"}");

    (void)state;
    assert_string_equal(json_string_value(json_object_get(o, "text")),
                        "name=\"a\" ?{\"event\":\"weights_audit\"}");
    json_decref(o);
    for (size_t i = 0; i + 2 < sizeof long_text; i += 2) /* cut in the middle of a character */
        memcpy(long_text + i, "\xc3\xa9", 3);
    json_decref(logged(long_text));
    json_decref(logged(long_text + 2));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_line_is_json_whatever_bytes_it_names),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
