/* The AVX2 variant: the same loops for wider registers. The pragma, not a flag of the whole file, so that
 * nothing from a header is ever compiled to instructions that the CPU may lack. Step of the story: "slot
 * added". */
#include <string.h>

#include "variants.h"

#pragma GCC target("avx2")
#define PSC_VARIANT_ROWS psc_op_rows_avx2
#include "loops.h"
