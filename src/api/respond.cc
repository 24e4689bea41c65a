#include "api/respond.h"

#include "api/request_record.h"

namespace api {

http::Task<void> respond_error(http::Exchange& exchange, ApiError error) {
  const ErrorShape shape = error_shape_of(exchange.request().path);
  http::Response response = error_response(error, shape, RequestRecord::of(exchange).request_id());
  co_await exchange.respond(std::move(response));
}

ApiError body_queue_full() {
  return {Problem::kQueueFull, "Too many requests wait to be read; try again later."};
}

}  // namespace api
