#include "service/times.h"

#include <math.h>

#include "base/clock.h"
#include "base/json.h"

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
    return s && *s ? json_repaired(s) : json_null();
}
