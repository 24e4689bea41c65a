#include "store/page_pool.h"

#include <utility>

#include "base/check.h"

namespace store {

base::Result<PagePool> PagePool::create(const PagePoolShape& shape, const char* what) {
  CHECK(shape.num_columns >= 0 && shape.num_rows >= 0 && shape.item_bytes > 0, "{} of {} x {}",
        what, shape.num_columns, shape.num_rows);
  PagePool pool;
  pool.shape_ = shape;
  if (shape.bytes() > 0) {
    ASSIGN_OR_RETURN(pool.buffer_, device::Buffer::allocate(shape.bytes(), what));
  }
  return pool;
}

}  // namespace store
