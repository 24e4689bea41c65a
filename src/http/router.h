// (method, path) -> handler, by exact match or by what a path begins with. Immutable once the
// server runs.
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
  // For all longer paths that begin with `path`, unless they have been added themselves. REQUIRES:
  // it ends in '/'; none begins with another.
  void add_below(std::string method, std::string path, Handler handler);

  struct Found {
    const Handler* handler = nullptr;  // null: not found
    std::string allow;                 // when the path exists under other methods only: "GET, HEAD"
    std::string_view
        route;  // the path as registered, "" when unknown: a metric label of bounded variety
  };
  // HEAD is answered by the handler of GET.
  Found find(std::string_view method, std::string_view path) const;

 private:
  using Methods = std::map<std::string, Handler, std::less<>>;
  using Routes = std::map<std::string, Methods, std::less<>>;
  Routes routes_, below_;

  static void add_to(Routes& routes, std::string method, std::string path, Handler handler);
  const Routes::value_type* route_of(std::string_view path) const;
};

}  // namespace http
