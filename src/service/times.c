#include "service/times.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/utf8.h"

json_t *json_time(int64_t wall_ms)
{
    char text[32];

    if (!wall_ms)
        return json_null();
    clock_iso8601(wall_ms, text);
    return json_string(text);
}

json_t *json_ms(double ms)
{
    return json_real(round(ms * 10) / 10);
}

json_t *json_text(const char *s)
{
    json_t *text;
    char *copy;

    if (!s || !*s)
        return json_null();
    text = json_string(s);
    if (text || !(copy = strdup(s)))
        return text;
    utf8_repair(copy); /* a path may hold any bytes */
    text = json_string(copy);
    free(copy);
    return text;
}
