/* The door's guarded twin: psc_kernels.def.h with what it needs from the C library. */
#ifndef PSC_KERNELS_H
#define PSC_KERNELS_H

#include <stdbool.h>
#include <stdint.h>

#include "psc_kernels.def.h"

#endif
