/* service/weaver/scope.h - the one organization and project that this server knows: everybody who
 * has a key is one team. */
#ifndef SERVICE_WEAVER_SCOPE_H
#define SERVICE_WEAVER_SCOPE_H

#define SCOPE_ORGANIZATION "00000000-0000-4000-8000-000000000001"
#define SCOPE_PROJECT      "00000000-0000-4000-8000-000000000002"

#endif
