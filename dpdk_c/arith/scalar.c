/* The reference variant: the loops for the baseline instruction set. Step of the story: "slot added". */
#include <string.h>

#include "variants.h"

#define PSC_VARIANT_ROWS psc_op_rows_scalar
#include "loops.h"
