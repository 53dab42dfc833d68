#include "service/memory.h"

#include <math.h>

#include "base/err.h"
#include "base/faults.h"
#include "base/log.h"
#include "base/meminfo.h"
#include "engine/engine.h"
#include "engine/image.h"
#include "engine/image_bank.h"
#include "service/refusal.h"
#include "service/service.h"
#include "tensor/weights.h"

static json_t *memory_facts(size_t available, size_t required, size_t bytes)
{
    return json_pack("{s:I, s:I, s:I}", "available_bytes", (json_int_t)available, "required_bytes",
                     (json_int_t)required, "snapshot_bytes", (json_int_t)bytes);
}

static int refuse_memory(size_t available, size_t required, size_t bytes, struct refusal *r)
{
    return refuse_with(r, REFUSAL_INSUFFICIENT_MEMORY, memory_facts(available, required, bytes),
                       "%zu bytes of memory are free, %zu are needed.", available, required);
}

int memory_refuse(struct service *s, size_t bytes, bool tests, struct refusal *r)
{
    size_t required = (size_t)ceil((double)bytes * 1.1), available = 0;
    int64_t faked = 0;
    int known;

    if (tests && faults_mem_available(s->faults, &faked)) {
        known = faked < 0 ? -1 : 0;
        available = faked < 0 ? 0 : (size_t)faked;
    } else {
        known = meminfo_available(&available);
        available += image_bank_spare_bytes(engine_bank(s->engine));
    }
    if (known < 0) {
        log_ev(LOG_WARNING, "memory_unknown", "required_bytes=%zu", required);
        return 0;
    }
    return available < required ? refuse_memory(available, required, bytes, r) : 0;
}

size_t memory_resident_bytes(struct service *s)
{
    struct image *im = engine_peek_image(s->engine);
    size_t bytes = im ? im->weights->bytes : 0;

    image_unref(im);
    return bytes;
}

int memory_refuse_instead(struct service *s, size_t bytes, bool tests, struct refusal *r)
{
    size_t freed = memory_resident_bytes(s);

    return bytes > freed ? memory_refuse(s, bytes - freed, tests, r) : 0;
}

int memory_refuse_test(struct service *s, size_t bytes, struct refusal *r)
{
    int64_t faked;

    return faults_mem_available(s->faults, &faked) ? memory_refuse(s, bytes, true, r) : 0;
}

int memory_refuse_failed(size_t bytes, const struct err *e, struct refusal *r)
{
    size_t available = 0;

    (void)meminfo_available(&available);
    return refuse_with(r, REFUSAL_INSUFFICIENT_MEMORY, memory_facts(available, bytes, bytes),
                       "There is no memory for %zu bytes of weights: %s.", bytes, e->msg);
}
