#include "http/router.h"

#include "base/check.h"

namespace http {

void Router::add_to(Routes& routes, std::string method, std::string path, Handler handler) {
  const bool added = routes[path].emplace(method, std::move(handler)).second;
  CHECK(added, "{} {} registered twice", method, path);
}

void Router::add(std::string method, std::string path, Handler handler) {
  add_to(routes_, std::move(method), std::move(path), std::move(handler));
}

void Router::add_below(std::string method, std::string path, Handler handler) {
  CHECK(path.ends_with('/'), "{}", path);
  add_to(below_, std::move(method), std::move(path), std::move(handler));
}

const Router::Routes::value_type* Router::route_of(std::string_view path) const {
  if (const auto route = routes_.find(path); route != routes_.end()) return &*route;
  for (const auto& route : below_) {
    if (path.size() > route.first.size() && path.starts_with(route.first)) return &route;
  }
  return nullptr;
}

Router::Found Router::find(std::string_view method, std::string_view path) const {
  Found found;
  const auto* const route = route_of(path);
  if (route == nullptr) return found;
  found.route = route->first;
  const Methods& methods = route->second;
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
