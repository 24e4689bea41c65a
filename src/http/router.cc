#include "http/router.h"

#include "base/check.h"

namespace http {

void Router::add(std::string method, std::string path, Handler handler) {
  const bool added = routes_[path].emplace(method, std::move(handler)).second;
  CHECK(added, "{} {} registered twice", method, path);
}

Router::Found Router::find(std::string_view method, std::string_view path) const {
  Found found;
  const auto route = routes_.find(path);
  if (route == routes_.end()) return found;
  found.route = route->first;
  const auto& methods = route->second;
  const auto entry = methods.find(method == "HEAD" ? std::string_view("GET") : method);
  if (entry != methods.end()) {
    found.handler = &entry->second;
    return found;
  }
  for (const auto& [name, handler] : methods) {
    found.allow += (found.allow.empty() ? "" : ", ") + name + (name == "GET" ? ", HEAD" : "");
  }
  return found;
}

}  // namespace http
