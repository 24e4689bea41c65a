// Every path of the server and its handler, with what all of them share: the request id, who may
// ask (api/access.h), the server's state.
#pragma once

#include "api/service.h"
#include "http/router.h"
#include "http/server.h"

namespace api {

// The handlers borrow `service`, which must outlive the server that uses the router.
http::Router make_router(Service& service);

// Whether this request may be served, from its head: http::ServerOptions::judge.
http::Verdict judge(Service& service, const http::Request& head, std::string_view route);

// What http/ refuses by itself, in the shape that clients of its path expect and with a request id,
// as far as the head of the request was read: http::ServerOptions::make_error.
http::Response refusal_response(Service& service, http::Refusal refusal,
                                const http::Request& request, const std::string& message);

}  // namespace api
