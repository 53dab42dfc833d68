/* The two keywords about texts: format date-time, and pattern. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

#include "store/schema_impl.h"

/* Reads exactly n digits at *at; -1: there are none. */
static int digits(const char **at, int n)
{
    int v = 0;

    for (int i = 0; i < n; i++, (*at)++) {
        if (**at < '0' || **at > '9')
            return -1;
        v = v * 10 + (**at - '0');
    }
    return v;
}

static int days_in(int year, int month)
{
    static const int days[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    bool leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;

    return days[month - 1] + (month == 2 && leap);
}

static bool is_date(const char **at)
{
    int year = digits(at, 4);
    int month, day;

    if (year < 0 || *(*at)++ != '-')
        return false;
    month = digits(at, 2);
    if (month < 1 || month > 12 || *(*at)++ != '-')
        return false;
    day = digits(at, 2);
    return day >= 1 && day <= days_in(year, month);
}

static bool is_time(const char **at)
{
    int hour = digits(at, 2);
    int minute, second;

    if (hour < 0 || hour > 23 || *(*at)++ != ':')
        return false;
    minute = digits(at, 2);
    if (minute < 0 || minute > 59 || *(*at)++ != ':')
        return false;
    second = digits(at, 2);
    if (second < 0 || second > 60)
        return false;
    if (**at != '.')
        return true;
    (*at)++;
    if (digits(at, 1) < 0)
        return false;
    while (**at >= '0' && **at <= '9')
        (*at)++;
    return true;
}

static bool is_offset(const char **at)
{
    int hour, minute;

    if (**at == 'Z' || **at == 'z') {
        (*at)++;
        return true;
    }
    if (**at != '+' && **at != '-')
        return false;
    (*at)++;
    hour = digits(at, 2);
    if (hour < 0 || hour > 23 || *(*at)++ != ':')
        return false;
    minute = digits(at, 2);
    return minute >= 0 && minute <= 59;
}

bool schema_is_date_time(const char *text, size_t len)
{
    const char *at = text;

    if (strlen(text) != len || !is_date(&at) || (*at != 'T' && *at != 't'))
        return false;
    at++;
    return is_time(&at) && is_offset(&at) && *at == 0;
}

struct schema_pattern {
    pcre2_code *code;
};

struct schema_pattern *schema_pattern_new(const char *pattern)
{
    struct schema_pattern *p = calloc(1, sizeof *p);
    int error;
    size_t where;

    if (!p)
        return NULL;
    /* DOLLAR_ENDONLY: as in ECMA, '$' is the very end, not a place before a last line break. */
    p->code = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED,
                            PCRE2_UTF | PCRE2_DOLLAR_ENDONLY, &error, &where, NULL);
    if (p->code)
        return p;
    free(p);
    return NULL;
}

void schema_pattern_free(struct schema_pattern *p)
{
    if (!p)
        return;
    pcre2_code_free(p->code);
    free(p);
}

int schema_matches(const struct schema_pattern *p, const json_t *value)
{
    pcre2_match_data *data = pcre2_match_data_create(1, NULL);
    int rc = PCRE2_ERROR_NOMEMORY;

    if (data)
        rc = pcre2_match(p->code, (PCRE2_SPTR)json_string_value(value), json_string_length(value),
                         0, 0, data, NULL);
    pcre2_match_data_free(data);
    return rc == PCRE2_ERROR_NOMEMORY ? -1 : rc >= 0;
}
