// Every path of the server and its handler, with what all of them share: the request id, the API
// key, the server's state.
#pragma once

#include "api/service.h"
#include "http/router.h"
#include "http/server.h"

namespace api {

// The handlers borrow `service`, which must outlive the server that uses the router.
http::Router make_router(Service& service);

// The shape of what http/ refuses by itself.
http::Response refusal_response(http::Refusal refusal, const std::string& message);

}  // namespace api
