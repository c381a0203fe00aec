// The copy of a step's numbers, and kernels that read them at an address common to all lanes.
#include "../../../../kernels/step.hip"
#include "../../../../kernels/rows/rows.hip"
