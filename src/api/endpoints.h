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

// The shape of what http/ refuses by itself.
http::Response refusal_response(http::Refusal refusal, const std::string& message);

}  // namespace api
