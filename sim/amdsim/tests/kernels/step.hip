// A step's numbers as the engine brings them, and kernels of it that read them where all lanes have the same address.
#include "../../../../kernels/step.hip"
#include "../../../../kernels/rows.hip"
