/* Chat templates: rendered text and ids against the reference (tests/vectors/tokenizer/chats.json),
 * and templates that misbehave. The worker is the real process. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

static int new_worker(void **state)
{
    struct err e = {0};

    *state = chat_worker_new(&e);
    return *state ? 0 : -1;
}

static int free_worker(void **state)
{
    chat_worker_free(*state);
    return 0;
}

static json_t *parse(const char *text)
{
    struct err e = {0};
    json_t *v = json_parse(text, strlen(text), &e);

    if (!v)
        fail_msg("%s", e.msg);
    return v;
}

static struct chat_source *source_of(const char *jinja)
{
    struct err e = {0};
    json_t *config = parse("{\"bos_token\":\"<s>\",\"eos_token\":{\"content\":\"</s>\"}}");
    struct chat_source *s = chat_source_new(config, jinja, &e);

    json_decref(config);
    assert_non_null(s);
    return s;
}

static const char hello[] = "[{\"role\":\"user\",\"content\":\"Hello\"}]";

/* Renders `jinja` with the messages; the text is appended to *out. */
static int render(struct chat_worker *w, const char *jinja, const char *messages,
                  const char *kwargs, struct buf *out, struct err *e)
{
    struct chat_source *s = source_of(jinja);
    json_t *m = parse(messages), *k = kwargs ? parse(kwargs) : NULL;
    struct chat_request r = {.messages = m, .kwargs = k};
    int rc = chat_render(w, s, &r, out, e);

    json_decref(m);
    json_decref(k);
    chat_source_unref(s);
    return rc;
}

static void assert_renders(struct chat_worker *w, const char *jinja, const char *want)
{
    struct buf out = {0};
    struct err e = {0};

    if (render(w, jinja, hello, NULL, &out, &e) < 0)
        fail_msg("%s", e.msg);
    assert_string_equal(buf_str(&out), want);
    buf_release(&out);
}

static void assert_fails(struct chat_worker *w, const char *jinja, const char *words)
{
    struct buf out = {0};
    struct err e = {0};

    assert_int_equal(render(w, jinja, hello, NULL, &out, &e), -1);
    assert_int_equal(e.code, ERR_ARG);
    if (!strstr(e.msg, words))
        fail_msg("\"%s\" does not say \"%s\"", e.msg, words);
    assert_int_equal(out.len, 0);
    buf_release(&out);
    assert_renders(w, "{{ messages[0].content }}!", "Hello!"); /* the next render works */
}

/* ---- the reference ---- */

static json_t *further_variables(const json_t *chat)
{
    json_t *kwargs = json_object(), *v;
    const char *key;

    json_object_foreach ((json_t *)(uintptr_t)chat, key, v)
        if (strcmp(key, "messages") && strcmp(key, "add_generation_prompt") &&
            strcmp(key, "tools") && strcmp(key, "text") && strcmp(key, "ids"))
            json_object_set(kwargs, key, v);
    return kwargs;
}

static void check_ids(const struct tokenizer *t, const struct buf *text, const json_t *want)
{
    struct token_list ids = {0};
    struct err e = {0};

    assert_int_equal(tokenizer_encode(t, buf_str(text), text->len, 0, &ids, &e), 0);
    assert_int_equal(ids.n, json_array_size(want));
    for (size_t i = 0; i < ids.n; i++)
        assert_int_equal(ids.ids[i], json_integer_value(json_array_get(want, i)));
    token_list_release(&ids);
}

static void check_chat(struct chat_worker *w, const struct chat_source *s,
                       const struct tokenizer *t, const json_t *chat)
{
    json_t *kwargs = further_variables(chat);
    struct chat_request r = {
        .messages = json_object_get(chat, "messages"),
        .tools = json_object_get(chat, "tools"),
        .kwargs = kwargs,
        .add_generation_prompt = json_is_true(json_object_get(chat, "add_generation_prompt")),
    };
    struct buf out = {0};
    struct err e = {0};

    if (chat_render(w, s, &r, &out, &e) < 0)
        fail_msg("%s", e.msg);
    assert_string_equal(buf_str(&out), json_string_value(json_object_get(chat, "text")));
    check_ids(t, &out, json_object_get(chat, "ids"));
    buf_release(&out);
    json_decref(kwargs);
}

static int open_model(const char *name)
{
    char path[512];
    const char *root = getenv("CAIRN_TEST_TOKENIZERS");
    int fd;

    snprintf(path, sizeof path, "tests/vectors/models/%s", name);
    fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0)
        return fd;
    snprintf(path, sizeof path, "%s/%s", root ? root : "build/tokenizers", name);
    return open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

static void every_reference_chat_renders_and_tokenises_equal(void **state)
{
    struct err e = {0};
    json_t *root = json_parse_file(AT_FDCWD, "tests/vectors/tokenizer/chats.json", 1 << 20, &e),
           *chats;
    const char *name;
    size_t n = 0;

    assert_non_null(root);
    json_object_foreach (root, name, chats) {
        int fd = open_model(name);
        struct chat_source *s;
        struct tokenizer *t;
        const json_t *chat;
        size_t i;

        if (fd < 0) /* the published model is not in the repository */
            continue;
        s = chat_source_open(fd, &e);
        t = tokenizer_open(fd, &e);
        close(fd);
        assert_true(s && t && chat_source_has(s, NULL));
        json_array_foreach (chats, i, chat) {
            check_chat(*state, s, t, chat);
            n++;
        }
        chat_source_unref(s);
        tokenizer_unref(t);
    }
    assert_true(n >= 19);
    json_decref(root);
}

/* ---- the language ---- */

static void filters_and_functions_are_those_of_the_reference(void **state)
{
    assert_renders(*state, "{{ bos_token }}{{ eos_token }}", "<s></s>");
    assert_renders(*state, "{{ {'a': '<\xc3\xa9>', 'b': [1, 2.5, none, true]} | tojson }}",
                   "{\"a\": \"<\xc3\xa9>\", \"b\": [1, 2.5, null, true]}");
    assert_renders(*state, "{{ {'b': 1, 'a': 2} | tojson(indent=2) }}",
                   "{\n  \"b\": 1,\n  \"a\": 2\n}");
    assert_renders(
        *state,
        "{% for x in [1, 2, 3] %}{% if x == 2 %}{% continue %}{% endif %}{{ x }}{% endfor %}",
        "13");
    assert_renders(
        *state, "{% for x in [1, 2, 3] %}{% if x == 2 %}{% break %}{% endif %}{{ x }}{% endfor %}",
        "1");
    assert_renders(*state, "a\n  {% if true %}\n  b\n  {% endif %}\nc", "a\n  b\nc");
    assert_renders(*state, "{% generation %}x{% endgeneration %}y", "xy");
    assert_renders(*state, "{{ strftime_now('%Y') | length }}", "4");
    assert_renders(*state,
                   "{{ tools is none }} {{ documents is none }} {{ add_generation_prompt }}",
                   "True True False");
    assert_renders(*state, "{{ missing is defined }}{{ missing }}", "False");
}

static void further_variables_reach_the_template_and_fixed_ones_stay(void **state)
{
    struct buf out = {0};
    struct err e = {0};

    assert_int_equal(render(*state, "{{ think }} {{ messages[0].content }} {{ bos_token }}", hello,
                            "{\"think\":7,\"messages\":[],\"bos_token\":\"B\"}", &out, &e),
                     0);
    assert_string_equal(buf_str(&out), "7 Hello B");
    buf_release(&out);
}

static void text_of_any_script_and_nul_comes_through(void **state)
{
    struct buf out = {0};
    struct err e = {0};

    assert_int_equal(render(*state, "{{ messages[0].content }}",
                            "[{\"role\":\"user\",\"content\":\"\\u0000\xf0\x9f\x98\x80\\n\"}]",
                            NULL, &out, &e),
                     0);
    assert_int_equal(out.len, 6);
    assert_memory_equal(out.data, "\0\xf0\x9f\x98\x80\n", 6);
    buf_release(&out);
}

static void the_last_message_can_be_left_open(void **state)
{
    static const char jinja[] =
        "{% for m in messages %}[{{ m.role }}]{{ m.content | trim }}[end]{% endfor %}";
    struct chat_source *s = source_of(jinja);
    json_t *m = parse(
        "[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"b  \"}]");
    struct chat_request r = {.messages = m, .continue_final_message = true};
    struct buf out = {0};
    struct err e = {0};

    assert_int_equal(chat_render(*state, s, &r, &out, &e), 0);
    assert_string_equal(buf_str(&out), "[user]a[end][assistant]b");
    r.add_generation_prompt = true;
    assert_int_equal(chat_render(*state, s, &r, &out, &e), -1);
    assert_int_equal(e.code, ERR_ARG);
    buf_release(&out);
    json_decref(m);
    chat_source_unref(s);
}

static void the_space_of_an_open_message_stays_where_the_template_keeps_it(void **state)
{
    struct chat_source *s = source_of("{% for m in messages %}{{ m.content }}|{% endfor %}");
    json_t *m = parse("[{\"role\":\"assistant\",\"content\":\"so \"}]");
    struct chat_request r = {.messages = m, .continue_final_message = true};
    struct buf out = {0};
    struct err e = {0};

    assert_int_equal(chat_render(*state, s, &r, &out, &e), 0);
    assert_string_equal(buf_str(&out), "so ");
    buf_release(&out);
    json_decref(m);
    chat_source_unref(s);
}

static void named_templates_are_chosen_by_name_and_by_tools(void **state)
{
    struct err e = {0};
    json_t *config =
        parse("{\"chat_template\":[{\"name\":\"default\",\"template\":\"D\"},"
              "{\"name\":\"tool_use\",\"template\":\"T\"},{\"name\":\"rag\",\"template\":\"R\"}]}");
    struct chat_source *s = chat_source_new(config, NULL, &e);
    json_t *m = parse(hello), *tools = parse("[{\"type\":\"function\"}]");
    struct chat_request r = {.messages = m};
    struct buf out = {0};

    assert_non_null(s);
    assert_int_equal(chat_render(*state, s, &r, &out, &e), 0);
    r.tools = tools;
    assert_int_equal(chat_render(*state, s, &r, &out, &e), 0);
    r.template_name = "rag";
    assert_int_equal(chat_render(*state, s, &r, &out, &e), 0);
    assert_string_equal(buf_str(&out), "DTR");
    r.template_name = "none such";
    assert_int_equal(chat_render(*state, s, &r, &out, &e), -1);
    assert_int_equal(e.code, ERR_NOT_FOUND);
    buf_release(&out);
    json_decref(m);
    json_decref(tools);
    json_decref(config);
    chat_source_unref(s);
}

/* ---- sizes ---- */

/* One message of n letters, as JSON text. */
static char *big_messages(size_t n)
{
    static const char head[] = "[{\"role\":\"user\",\"content\":\"", tail[] = "\"}]";
    char *text = malloc(n + sizeof head + sizeof tail);

    assert_non_null(text);
    memcpy(text, head, sizeof head - 1);
    memset(text + sizeof head - 1, 'x', n);
    memcpy(text + sizeof head - 1 + n, tail, sizeof tail);
    return text;
}

static void a_large_request_goes_through_and_a_larger_one_is_refused(void **state)
{
    struct buf out = {0};
    struct err e = {0};
    char *fits = big_messages(7 << 20), *beyond = big_messages(CHAT_INPUT_MAX);

    assert_int_equal(render(*state, "{{ messages[0].content | length }}", fits, NULL, &out, &e), 0);
    assert_string_equal(buf_str(&out), "7340032");
    assert_int_equal(render(*state, "x", beyond, NULL, &out, &e), -1);
    assert_int_equal(e.code, ERR_ARG);
    buf_reset(&out);
    assert_int_equal(render(*state, "{{ 'y' * 1048576 }}", hello, NULL, &out, &e), 0);
    assert_int_equal(out.len, CHAT_OUTPUT_MAX);
    free(fits);
    free(beyond);
    buf_release(&out);
}

static void assert_no_source(const char *config_text, const char *jinja, const char *words)
{
    struct err e = {0};
    json_t *config = config_text ? parse(config_text) : NULL;

    assert_null(chat_source_new(config, jinja, &e));
    assert_int_equal(e.code, ERR_FORMAT);
    assert_non_null(strstr(e.msg, words));
    json_decref(config);
}

static void sources_that_are_wrong_are_refused(void **state)
{
    char *big = malloc(CHAT_TEMPLATE_MAX + 2);

    (void)state;
    assert_non_null(big);
    memset(big, 'x', CHAT_TEMPLATE_MAX + 1);
    big[CHAT_TEMPLATE_MAX + 1] = '\0';
    assert_no_source(NULL, big, "1048577 bytes");
    assert_no_source(NULL, "\xff", "UTF-8");
    assert_no_source("{\"chat_template\":7}", NULL, "neither");
    assert_no_source("{\"chat_template\":[{\"name\":\"a\"}]}", NULL, "chat_template[0]");
    free(big);
}

/* chat_template.jinja beside the configuration is the one that counts; sources are counted. */
static void a_template_file_wins_over_the_configuration(void **state)
{
    char dir[] = "/tmp/cairn-chat-XXXXXX";
    struct err e = {0};
    struct chat_source *s, *again;
    json_t *m = parse(hello);
    struct chat_request r = {.messages = m};
    struct buf out = {0};
    int fd, file;

    assert_non_null(mkdtemp(dir));
    fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    file = openat(fd, "chat_template.jinja", O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    assert_int_equal(write(file, "file", 4), 4);
    close(file);
    file = openat(fd, "tokenizer_config.json", O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    assert_int_equal(write(file, "{\"chat_template\":\"conf\"}", 24), 24);
    close(file);
    s = chat_source_open(fd, &e);
    assert_non_null(s);
    again = chat_source_ref(s);
    chat_source_unref(s);
    assert_int_equal(chat_render(*state, again, &r, &out, &e), 0);
    assert_string_equal(buf_str(&out), "file");
    chat_source_unref(again);
    unlinkat(fd, "chat_template.jinja", 0);
    unlinkat(fd, "tokenizer_config.json", 0);
    close(fd);
    rmdir(dir);
    json_decref(m);
    buf_release(&out);
}

/* ---- templates that misbehave ---- */

static void what_a_template_raises_is_what_the_client_reads(void **state)
{
    struct err e = {0};
    struct buf out = {0};

    assert_int_equal(render(*state, "{{ raise_exception('Roles must\nalternate: \xc3\xa9') }}",
                            hello, NULL, &out, &e),
                     -1);
    assert_string_equal(e.msg, "Roles must alternate: \xc3\xa9");
    buf_release(&out);
    assert_fails(*state, "{{ raise_exception('no') }}", "no");
}

static void a_template_with_an_error_says_where(void **state)
{
    assert_fails(*state, "a\n{% if %}", "line 2");
    assert_fails(*state, "{{ messages[0].content + 1 }}", "TypeError");
    assert_fails(*state, "{{ a.b.c }}", "UndefinedError");
    assert_fails(*state, "{{ 1 / 0 }}", "ZeroDivisionError");
}

static void a_template_that_reaches_out_of_the_sandbox_is_refused(void **state)
{
    assert_fails(*state, "{{ ''.__class__ }}", "SecurityError");
    assert_fails(*state, "{{ ''.__class__.__mro__[1].__subclasses__() }}", "SecurityError");
    assert_fails(*state, "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
                 "SecurityError");
    assert_fails(*state, "{{ '{0.__class__}'.format(1) }}", "SecurityError");
    assert_fails(*state, "{% include '/etc/passwd' %}", "TypeError");
    assert_fails(*state, "{% import 'os' as os %}", "TypeError");
    assert_fails(*state, "{{ messages.append(1) }}", "SecurityError");
}

static void a_template_without_end_is_stopped(void **state)
{
    assert_fails(*state,
                 "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}"
                 "{% endfor %}{% endfor %}{% endfor %}",
                 "did not end");
}

static void a_template_that_allocates_without_end_is_stopped(void **state)
{
    assert_fails(*state, "{{ ('a' * 2000000000) | length }}", "memory");
    assert_fails(*state, "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "memory");
}

static void a_template_that_prints_without_end_is_stopped(void **state)
{
    assert_fails(*state, "{{ 'ab' * 600000 }}", "printed more");
    assert_fails(*state, "{% for a in range(99999) %}0123456789ab{% endfor %}", "printed more");
}

/* ---- the process ---- */

/* The value of `field` in /proc/<pid>/status. */
static long status_of(pid_t pid, const char *field)
{
    char path[64], line[256];
    long value = -1;
    FILE *f;

    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    f = fopen(path, "re");
    if (!f)
        return -1;
    while (fgets(line, sizeof line, f))
        if (strncmp(line, field, strlen(field)) == 0)
            value = strtol(line + strlen(field) + 1, NULL, 10);
    fclose(f);
    return value;
}

/* Sum over all processes below `parent`; *one is some direct child. */
static long sum_over_children(const char *field, pid_t parent, pid_t *one)
{
    DIR *d = opendir("/proc");
    struct dirent *entry;
    long sum = 0;

    assert_non_null(d);
    while ((entry = readdir(d))) {
        pid_t pid = (pid_t)strtol(entry->d_name, NULL, 10);

        if (pid <= 0 || status_of(pid, "PPid:") != parent)
            continue;
        if (one)
            *one = pid;
        sum += status_of(pid, field) + sum_over_children(field, pid, NULL);
    }
    closedir(d);
    return sum;
}

static void a_worker_can_be_started_before_it_is_needed(void **state)
{
    struct err e = {0};
    struct chat_worker *w = chat_worker_new(&e);

    (void)state;
    assert_non_null(w);
    assert_int_equal(chat_worker_warm(w, &e), 0);
    assert_int_equal(chat_worker_warm(w, &e), 0); /* once is enough */
    assert_renders(w, "x", "x");
    chat_worker_free(w);
    chat_worker_free(NULL);
}

static void a_worker_that_was_killed_is_started_again(void **state)
{
    pid_t pid = 0;

    assert_renders(*state, "x", "x");
    sum_over_children("VmRSS:", getpid(), &pid);
    assert_true(pid > 0);
    kill(pid, SIGKILL);
    assert_renders(*state, "y", "y");
}

static int count_descriptors(pid_t pid)
{
    char path[64];
    DIR *d;
    struct dirent *entry;
    int n = 0;

    snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
    d = opendir(path);
    assert_non_null(d);
    while ((entry = readdir(d)))
        n += entry->d_name[0] != '.';
    closedir(d);
    return n;
}

static void a_rendering_process_is_behind_its_walls(void **state)
{
    pid_t nursery = 0, child = 0;

    assert_renders(*state, "x", "x");
    sum_over_children("VmRSS:", getpid(), &nursery);
    sum_over_children("VmRSS:", nursery, &child);
    assert_true(child > 0);
    assert_int_equal(status_of(child, "Seccomp:"), 2);
    assert_int_equal(status_of(child, "NoNewPrivs:"), 1);
    assert_int_equal(count_descriptors(child), 1); /* its socket */
}

static void a_template_keeps_nothing_between_two_renders(void **state)
{
    static const char jinja[] = "{% set ns = namespace(n=0) %}{% set ns.n = ns.n + 1 %}{{ ns.n }}";

    assert_renders(*state, jinja, "1");
    assert_renders(*state, jinja, "1");
}

struct job {
    struct chat_worker *w;
    int wrong;
};

static void *render_often(void *arg)
{
    struct job *job = arg;

    for (int i = 0; i < 20; i++) {
        struct buf out = {0};
        struct err e = {0};
        struct chat_source *s =
            chat_source_new(NULL, i % 2 ? "{{ messages[0].content }}" : "Hello", &e);
        json_t *m = json_loads(hello, 0, NULL);
        struct chat_request r = {.messages = m};

        if (chat_render(job->w, s, &r, &out, &e) < 0 || strcmp(buf_str(&out), "Hello") != 0)
            job->wrong++;
        json_decref(m);
        chat_source_unref(s);
        buf_release(&out);
    }
    return NULL;
}

static void several_threads_share_one_worker(void **state)
{
    pthread_t threads[4];
    struct job jobs[4];

    for (int i = 0; i < 4; i++) {
        jobs[i] = (struct job){*state, 0};
        assert_int_equal(pthread_create(&threads[i], NULL, render_often, &jobs[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(jobs[i].wrong, 0);
    }
}

/* ---- without a worker ---- */

static void the_plain_form_needs_no_template(void **state)
{
    json_t *m =
        parse("[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\",\"content\":null},"
              "{\"role\":\"assistant\",\"content\":\"b\"}]");
    struct chat_request r = {.messages = m, .add_generation_prompt = true};
    struct buf out = {0};
    struct err e = {0};

    (void)state;
    assert_int_equal(chat_render_plain(&r, &out, &e), 0);
    assert_string_equal(buf_str(&out), "system: s\nuser: \nassistant: b\nassistant:");
    buf_reset(&out);
    r = (struct chat_request){.messages = m, .continue_final_message = true};
    assert_int_equal(chat_render_plain(&r, &out, &e), 0);
    assert_string_equal(buf_str(&out), "system: s\nuser: \nassistant: b");
    buf_release(&out);
    json_decref(m);
}

static void a_source_without_template_says_so(void **state)
{
    struct err e = {0};
    struct chat_source *s = chat_source_new(NULL, NULL, &e);
    json_t *m = parse(hello);
    struct chat_request r = {.messages = m};
    struct buf out = {0};

    assert_non_null(s);
    assert_false(chat_source_has(s, NULL));
    assert_int_equal(chat_render(*state, s, &r, &out, &e), -1);
    assert_int_equal(e.code, ERR_NOT_FOUND);
    json_decref(m);
    chat_source_unref(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_reference_chat_renders_and_tokenises_equal),
        cmocka_unit_test(filters_and_functions_are_those_of_the_reference),
        cmocka_unit_test(further_variables_reach_the_template_and_fixed_ones_stay),
        cmocka_unit_test(text_of_any_script_and_nul_comes_through),
        cmocka_unit_test(the_last_message_can_be_left_open),
        cmocka_unit_test(the_space_of_an_open_message_stays_where_the_template_keeps_it),
        cmocka_unit_test(named_templates_are_chosen_by_name_and_by_tools),
        cmocka_unit_test(a_large_request_goes_through_and_a_larger_one_is_refused),
        cmocka_unit_test(sources_that_are_wrong_are_refused),
        cmocka_unit_test(a_template_file_wins_over_the_configuration),
        cmocka_unit_test(what_a_template_raises_is_what_the_client_reads),
        cmocka_unit_test(a_template_with_an_error_says_where),
        cmocka_unit_test(a_template_that_reaches_out_of_the_sandbox_is_refused),
        cmocka_unit_test(a_template_without_end_is_stopped),
        cmocka_unit_test(a_template_that_allocates_without_end_is_stopped),
        cmocka_unit_test(a_template_that_prints_without_end_is_stopped),
        cmocka_unit_test(a_worker_can_be_started_before_it_is_needed),
        cmocka_unit_test(a_worker_that_was_killed_is_started_again),
        cmocka_unit_test(a_rendering_process_is_behind_its_walls),
        cmocka_unit_test(a_template_keeps_nothing_between_two_renders),
        cmocka_unit_test(several_threads_share_one_worker),
        cmocka_unit_test(the_plain_form_needs_no_template),
        cmocka_unit_test(a_source_without_template_says_so),
    };

    return cmocka_run_group_tests(tests, new_worker, free_worker);
}
