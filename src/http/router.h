// (method, path) -> handler, by exact match. Immutable once the server runs.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "http/exchange.h"

namespace http {

class Router {
 public:
  // REQUIRES: the pair is new.
  void add(std::string method, std::string path, Handler handler);

  struct Found {
    const Handler* handler = nullptr;  // null: not found
    std::string allow;                 // when the path exists under other methods only: "GET, HEAD"
    std::string_view
        route;  // the path as registered, "" when unknown: a metric label of bounded variety
  };
  // HEAD is answered by the handler of GET.
  Found find(std::string_view method, std::string_view path) const;

 private:
  std::map<std::string, std::map<std::string, Handler, std::less<>>, std::less<>> routes_;
};

}  // namespace http
