// The page for people: its files, compiled into the binary, and the state that it shows.
//
// The files hold nothing of the server, so they are open even where an API key is asked for; what
// they fetch is not. Their headers forbid the browser everything that they do not need: no script,
// style, image or connection from or to elsewhere, no frame around them.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "http/exchange.h"

namespace api {

class Service;

struct PageFile {
  std::string_view path;  // of the request: "/", "/page/page.js"
  std::string_view content_type;
  std::string_view bytes;
};

// Made by cmake/page.cmake from src/api/page.
std::span<const PageFile> page_files();

http::Response page_response(const PageFile& file);

// GET /spillway/state. Waits a moment for a fresh picture where the last one is old.
http::Task<void> answer_state(Service& service, http::Exchange& exchange);

}  // namespace api
