#include "base/nomem.h"

/* A hook of jansson takes no argument that could lead to a struct of ours. */
static _Thread_local bool noted;

void nomem_note(void)
{
    noted = true;
}

void nomem_forget(void)
{
    noted = false;
}

bool nomem_noted(void)
{
    return noted;
}
