/* config.json: other spellings, defaults, and what is refused. */
#include "fixture.h"

static json_t *parse(const char *text)
{
    struct err e = {0};
    json_t *o = json_parse(text, strlen(text), &e);

    must(o ? 0 : -1, &e);
    return o;
}

/* A small llama with `extra` members merged over it ("null" members delete). */
static json_t *llama_with(const char *extra)
{
    json_t *o = parse("{\"model_type\":\"llama\",\"hidden_size\":64,\"intermediate_size\":96,"
                      "\"num_hidden_layers\":2,\"num_attention_heads\":4,\"vocab_size\":100}");
    json_t *more = parse(extra);

    assert_int_equal(json_object_update(o, more), 0);
    json_decref(more);
    return o;
}

static struct model_config accept(const char *extra)
{
    struct model_config c;
    struct err e = {0};
    const char *reason = "";
    json_t *o = llama_with(extra);

    must(model_config_parse(&c, o, NULL, &reason, &e), &e);
    json_decref(o);
    return c;
}

static void refuse(const char *extra, const char *want_reason, const char *word)
{
    struct model_config c;
    struct err e = {0};
    const char *reason = "";
    json_t *o = llama_with(extra);

    if (model_config_parse(&c, o, NULL, &reason, &e) == 0)
        fail_msg("%s was accepted", extra);
    if (strcmp(reason, want_reason) != 0)
        fail_msg("%s: reason %s, expected %s (%s)", extra, reason, want_reason, e.msg);
    assert_int_equal(e.code, ERR_FORMAT);
    if (!strstr(e.msg, word))
        fail_msg("%s: \"%s\" does not name %s", extra, e.msg, word);
    json_decref(o);
}

/* Fields that decide the arithmetic. dtype spelling and pad id may differ between writers. */
static void check_same(const struct model_config *a, const struct model_config *b)
{
    assert_int_equal(a->family, b->family);
    assert_int_equal(a->n_layers, b->n_layers);
    assert_int_equal(a->hidden, b->hidden);
    assert_int_equal(a->ff, b->ff);
    assert_int_equal(a->n_heads, b->n_heads);
    assert_int_equal(a->n_kv_heads, b->n_kv_heads);
    assert_int_equal(a->head_dim, b->head_dim);
    assert_int_equal(a->vocab, b->vocab);
    assert_int_equal(a->max_positions, b->max_positions);
    assert_true(a->norm_eps == b->norm_eps);
    assert_memory_equal(&a->rope, &b->rope, sizeof a->rope);
    assert_int_equal(a->tied, b->tied);
    assert_int_equal(a->qkv_bias, b->qkv_bias);
    assert_int_equal(a->qk_norm, b->qk_norm);
    assert_memory_equal(a->is_conv, b->is_conv, sizeof a->is_conv);
    assert_int_equal(a->conv_taps, b->conv_taps);
    assert_string_equal(a->dtype, b->dtype);
}

static void other_spellings_mean_the_same_model(void **state)
{
    struct err e = {0};
    json_t *list = json_parse_file(AT_FDCWD, GOLDEN "config_variants.json", 1 << 20, &e);
    const char *reason = "";

    (void)state;
    must(list ? 0 : -1, &e);
    assert_int_equal(json_array_size(list), N_TINY);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *v = json_array_get(list, i);
        struct model_config stored, variant;
        char dir[256];
        int fd;

        snprintf(dir, sizeof dir, MODELS "%s", json_string_value(json_object_get(v, "model")));
        fd = open(dir, O_RDONLY | O_DIRECTORY);
        must(model_config_load(&stored, fd, &reason, &e), &e);
        must(model_config_parse(&variant, json_object_get(v, "config"), NULL, &reason, &e), &e);
        check_same(&stored, &variant);
        close(fd);
    }
    json_decref(list);
}

static void absent_keys_have_the_defaults_of_the_reference(void **state)
{
    struct model_config c = accept("{}");

    (void)state;
    assert_int_equal(c.n_kv_heads, 4);
    assert_int_equal(c.head_dim, 16);
    assert_false(c.tied);
    assert_true(c.norm_eps == 1e-6f);
    assert_true(c.rope.theta == 10000);
    assert_int_equal(c.max_positions, 2048);
    assert_int_equal(c.bos, -1);
    assert_int_equal(c.n_eos, 0);
    assert_false(c.has_dtype);
    c = accept("{\"model_type\":\"qwen3\",\"num_key_value_heads\":2}");
    assert_int_equal(c.head_dim, 128);
    assert_true(c.qk_norm);
    assert_int_equal(c.max_positions, 32768);
    c = accept("{\"model_type\":\"lfm2\",\"num_key_value_heads\":2,\"full_attn_idxs\":[1]}");
    assert_true(c.tied);
    assert_true(c.norm_eps == 1e-5f);
    assert_true(c.rope.theta == 1e6);
    assert_int_equal(c.is_conv[0], 1);
    assert_int_equal(c.is_conv[1], 0);
    assert_int_equal(c.conv_taps, 3);
    assert_int_equal(c.ff, 256); /* 96 -> 64 -> one block of 256 */
}

static void the_published_width_of_lfm2_comes_out(void **state)
{
    struct model_config c =
        accept("{\"model_type\":\"lfm2\",\"num_key_value_heads\":2,\"block_ff_dim\":12288,"
               "\"intermediate_size\":12288,\"block_multiple_of\":256,"
               "\"block_ffn_dim_multiplier\":1.0}");

    (void)state;
    assert_int_equal(c.ff, 8192);
    c = accept("{\"model_type\":\"lfm2\",\"num_key_value_heads\":2,\"intermediate_size\":130,"
               "\"block_auto_adjust_ff_dim\":false}");
    assert_int_equal(c.ff, 130);
}

static void the_longest_sequence_is_bounded(void **state)
{
    (void)state;
    assert_int_equal(accept("{\"max_position_embeddings\":2000000000}").max_positions,
                     MODEL_POSITIONS_MAX);
}

static void end_tokens_are_one_number_or_a_list_without_repeats(void **state)
{
    struct model_config c;
    struct err e = {0};
    const char *reason = "";
    json_t *config = llama_with("{\"eos_token_id\":[7,8],\"bos_token_id\":1}");
    json_t *generation = parse("{\"eos_token_id\":[8,9,500]}");

    (void)state;
    must(model_config_parse(&c, config, generation, &reason, &e), &e);
    assert_int_equal(c.n_eos, 3); /* 500 is no token */
    assert_int_equal(c.eos[0], 7);
    assert_int_equal(c.eos[1], 8);
    assert_int_equal(c.eos[2], 9);
    assert_int_equal(c.bos, 1);
    json_decref(config);
    json_decref(generation);
    c = accept("{\"eos_token_id\":5}");
    assert_int_equal(c.n_eos, 1);
    refuse("{\"eos_token_id\":\"</s>\"}", "config", "eos_token_id");
}

static void what_is_not_implemented_is_refused_by_name(void **state)
{
    (void)state;
    refuse("{\"model_type\":\"gpt2\"}", "unsupported", "gpt2");
    refuse("{\"hidden_act\":\"gelu\"}", "unsupported", "gelu");
    refuse("{\"rope_scaling\":{\"type\":\"linear\",\"factor\":2}}", "unsupported", "linear");
    refuse("{\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":2}}", "unsupported", "yarn");
    refuse("{\"rope_parameters\":{\"rope_type\":\"dynamic\"}}", "unsupported", "dynamic");
    refuse("{\"partial_rotary_factor\":0.5}", "unsupported", "partial_rotary_factor");
    refuse("{\"model_type\":\"qwen2\",\"use_sliding_window\":true,\"sliding_window\":8,"
           "\"max_window_layers\":1,\"num_key_value_heads\":4}",
           "unsupported", "sliding_window");
    refuse("{\"model_type\":\"qwen3\",\"num_key_value_heads\":4,"
           "\"layer_types\":[\"full_attention\",\"sliding_attention\"]}",
           "unsupported", "sliding_attention");
    refuse("{\"model_type\":\"lfm2\",\"num_key_value_heads\":2,\"use_pos_enc\":false}",
           "unsupported", "use_pos_enc");
    refuse("{\"quantization_config\":{\"bits\":4}}", "quantized", "quantization_config");
}

static void a_window_that_is_off_is_accepted(void **state)
{
    (void)state;
    accept("{\"model_type\":\"qwen2\",\"use_sliding_window\":false,\"sliding_window\":8,"
           "\"num_key_value_heads\":4}");
    accept("{\"model_type\":\"qwen2\",\"use_sliding_window\":true,\"sliding_window\":8,"
           "\"max_window_layers\":2,\"num_key_value_heads\":4}"); /* from layer 2 of 2 on */
}

static void impossible_numbers_are_refused_by_name(void **state)
{
    (void)state;
    refuse("{\"hidden_size\":0}", "config", "hidden_size");
    refuse("{\"hidden_size\":\"64\"}", "config", "hidden_size");
    refuse("{\"hidden_size\":null}", "config", "hidden_size");
    refuse("{\"num_hidden_layers\":100000}", "config", "num_hidden_layers");
    refuse("{\"num_attention_heads\":-4}", "config", "num_attention_heads");
    refuse("{\"vocab_size\":9007199254740993}", "config", "vocab_size");
    refuse("{\"num_key_value_heads\":3}", "config", "num_key_value_heads");
    refuse("{\"num_attention_heads\":5}", "config", "num_attention_heads");
    refuse("{\"head_dim\":15}", "config", "head_dim");
    refuse("{\"head_dim\":100000}", "config", "head_dim");
    refuse("{\"rms_norm_eps\":-1}", "config", "rms_norm_eps");
    refuse("{\"rope_theta\":0}", "config", "rope_theta");
    refuse("{\"rope_parameters\":[]}", "config", "rope_parameters");
    refuse("{\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8}}", "config",
           "low_freq_factor");
    refuse("{\"dtype\":\"bfloat16\",\"torch_dtype\":\"float16\"}", "dtype", "differ");
    refuse("{\"model_type\":7}", "incomplete", "model_type");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(other_spellings_mean_the_same_model),
        cmocka_unit_test(absent_keys_have_the_defaults_of_the_reference),
        cmocka_unit_test(the_published_width_of_lfm2_comes_out),
        cmocka_unit_test(the_longest_sequence_is_bounded),
        cmocka_unit_test(end_tokens_are_one_number_or_a_list_without_repeats),
        cmocka_unit_test(what_is_not_implemented_is_refused_by_name),
        cmocka_unit_test(a_window_that_is_off_is_accepted),
        cmocka_unit_test(impossible_numbers_are_refused_by_name),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
