// Compiles every contract of the folder.
#include "store/cuda/pinned_pool.h"
#include "store/cuda/transfers.h"
