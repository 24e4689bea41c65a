#include "text/jinja_sequence_filters.h"

#include <algorithm>

#include "text/jinja_sort.h"
#include "text/jinja_text.h"

namespace text::jinja {

using base::Code;

namespace {

using Answer = base::Result<Value>;
using Items = std::vector<Value>;

Answer generator(Runtime& runtime, Items items) {
  return make_list(&runtime.meter, std::move(items), List::Flavor::kGenerator);
}

Answer filter_length(Runtime&, const Value& self, const Args&) {
  switch (self.kind()) {
    case Kind::kUndefined:
      return Value::integer(0);
    case Kind::kString:
      return Value::integer(self.string().num_chars);
    case Kind::kDict:
      return Value::integer(static_cast<int64_t>(self.dict().items.size()));
    case Kind::kList:
      if (self.list().flavor == List::Flavor::kGenerator) break;
      return Value::integer(static_cast<int64_t>(self.list().items.size()));
    case Kind::kLoop:
      return Value::integer(static_cast<int64_t>(self.loop().items->size()));
    default:
      break;
  }
  return base::error(Code::kInvalidArgument, "object of type '{}' has no len()", type_name(self));
}

Answer filter_list(Runtime& runtime, const Value& self, const Args&) {
  ASSIGN_OR_RETURN(Items items, iterate(runtime.meter, self));
  return make_list(&runtime.meter, std::move(items));
}

Answer filter_items(Runtime& runtime, const Value& self, const Args&) {
  if (self.is_undefined()) return generator(runtime, {});
  if (!self.is(Kind::kDict)) {
    return base::error(Code::kInvalidArgument, "items: expected a mapping, got '{}'",
                       type_name(self));
  }
  ASSIGN_OR_RETURN(const Value method, find_method(runtime, self, "items"));
  ASSIGN_OR_RETURN(const Value view, method.callable().function(runtime, self, {}));
  return generator(runtime, view.list().items);
}

Answer filter_join(Runtime& runtime, const Value& self, const Args& args) {
  ASSIGN_OR_RETURN(const Bound a, Bound::match("join", args, {"d", "attribute"}));
  std::string glue;
  if (a.has(0)) {
    ASSIGN_OR_RETURN(glue, to_text(runtime.meter, *a[0]));
  }
  ASSIGN_OR_RETURN(const Items items, iterate(runtime.meter, self));
  Builder out(runtime.meter);
  for (size_t i = 0; i < items.size() && !out.overflowed(); ++i) {
    Value item = items[i];
    if (a.has(1) && !a[1]->is(Kind::kNone)) {
      ASSIGN_OR_RETURN(item, get_path(runtime, item, *a[1]));
    }
    ASSIGN_OR_RETURN(const std::string text, to_text(runtime.meter, item));
    if (i > 0) out.add(glue);
    out.add(text);
  }
  return std::move(out).finish();
}

Answer pick(Runtime& runtime, const Value& self, bool last) {
  const bool reversible = self.is_string() || self.is(Kind::kDict) || self.is_undefined() ||
                          (self.is(Kind::kList) && self.list().flavor != List::Flavor::kGenerator);
  if (last && !reversible)
    return base::error(Code::kInvalidArgument, "last: '{}' is not reversible", type_name(self));
  if (self.is_string() && !self.text().empty())
    return get_item(runtime, self, Value::integer(last ? -1 : 0));
  ASSIGN_OR_RETURN(const Items items, iterate(runtime.meter, self));
  if (items.empty()) return make_undefined("No first or last item, sequence was empty.");
  return last ? items.back() : items.front();
}

Answer filter_first(Runtime& runtime, const Value& self, const Args&) {
  return pick(runtime, self, false);
}
Answer filter_last(Runtime& runtime, const Value& self, const Args&) {
  return pick(runtime, self, true);
}

Answer filter_reverse(Runtime& runtime, const Value& self, const Args&) {
  ASSIGN_OR_RETURN(Items items, iterate(runtime.meter, self));
  std::reverse(items.begin(), items.end());
  if (!self.is_string()) return generator(runtime, std::move(items));
  Builder out(runtime.meter);
  for (const Value& item : items) out.add(item.text());
  return std::move(out).finish();
}

// What sorting and uniqueness look at: an attribute path perhaps, letters lowered unless case
// counts.
Answer sort_key(Runtime& runtime, const Value& item, const Value* attribute, bool case_sensitive) {
  Value key = item;
  if (attribute != nullptr && !attribute->is(Kind::kNone)) {
    ASSIGN_OR_RETURN(key, get_path(runtime, item, *attribute));
  }
  if (case_sensitive || !key.is_string()) return key;
  RETURN_IF_ERROR(spend_chars(runtime, key.text()));
  return make_string(&runtime.meter, lower(key.text()));
}

// Indices of `keys` in stable order.
base::Result<std::vector<size_t>> order_of(Runtime& runtime, const Items& keys, bool reverse) {
  base::Result<void> status;
  auto order = stable_order(keys.size(), [&](size_t a, size_t b) {
    if (!status.ok()) return false;
    if (reverse) std::swap(a, b);
    auto result = compare(runtime.meter, keys[a], keys[b]);
    if (!result.ok()) status = std::move(result).error();
    return result.ok() && *result < 0;
  });
  RETURN_IF_ERROR(std::move(status));
  return order;
}

base::Result<Items> sorted(Runtime& runtime, const Items& items, const Items& keys, bool reverse) {
  ASSIGN_OR_RETURN(const auto order, order_of(runtime, keys, reverse));
  Items result;
  for (const size_t index : order) result.push_back(items[index]);
  return result;
}

Answer filter_sort(Runtime& runtime, const Value& self, const Args& args) {
  ASSIGN_OR_RETURN(const Bound a,
                   Bound::match("sort", args, {"reverse", "case_sensitive", "attribute"}));
  ASSIGN_OR_RETURN(const Items items, iterate(runtime.meter, self));
  Items keys;
  if (a.has(2) && a[2]->is_string() && a[2]->text().find(',') != std::string_view::npos) {
    return base::error(Code::kUnsupported, "sort: several attributes are not supported");
  }
  for (const Value& item : items) {
    ASSIGN_OR_RETURN(Value key, sort_key(runtime, item, a[2], a.flag(1, false)));
    if (key.is_undefined()) return undefined_error(key);
    keys.push_back(std::move(key));
  }
  ASSIGN_OR_RETURN(Items result, sorted(runtime, items, keys, a.flag(0, false)));
  return make_list(&runtime.meter, std::move(result));
}

Answer filter_dictsort(Runtime& runtime, const Value& self, const Args& args) {
  ASSIGN_OR_RETURN(const Bound a,
                   Bound::match("dictsort", args, {"case_sensitive", "by", "reverse"}));
  ASSIGN_OR_RETURN(const std::string_view by, a.text(1, "key"));
  if (by != "key" && by != "value")
    return base::error(Code::kInvalidArgument, "dictsort: by must be 'key' or 'value'");
  if (!self.is(Kind::kDict))
    return base::error(Code::kInvalidArgument, "dictsort: expected a dict, got '{}'",
                       type_name(self));
  Items pairs, keys;
  for (const auto& [key, value] : self.dict().items) {
    ASSIGN_OR_RETURN(Value sort_by,
                     sort_key(runtime, by == "key" ? key : value, nullptr, a.flag(0, false)));
    keys.push_back(std::move(sort_by));
    ASSIGN_OR_RETURN(Value pair, make_list(&runtime.meter, {key, value}, List::Flavor::kTuple));
    pairs.push_back(std::move(pair));
  }
  ASSIGN_OR_RETURN(Items result, sorted(runtime, pairs, keys, a.flag(2, false)));
  return make_list(&runtime.meter, std::move(result));
}

Answer filter_unique(Runtime& runtime, const Value& self, const Args& args) {
  ASSIGN_OR_RETURN(const Bound a, Bound::match("unique", args, {"case_sensitive", "attribute"}));
  ASSIGN_OR_RETURN(const Items items, iterate(runtime.meter, self));
  Dict seen;
  Items result;
  for (const Value& item : items) {
    ASSIGN_OR_RETURN(Value key, sort_key(runtime, item, a[1], a.flag(0, false)));
    ASSIGN_OR_RETURN(const Value* found, find_key(runtime.meter, seen, key));
    if (found != nullptr) continue;
    seen.items.emplace_back(std::move(key), Value());
    result.push_back(item);
  }
  return generator(runtime, std::move(result));
}

Answer extreme(Runtime& runtime, const Value& self, const Args& args, bool largest) {
  ASSIGN_OR_RETURN(const Bound a, Bound::match("min", args, {"case_sensitive", "attribute"}));
  ASSIGN_OR_RETURN(const Items items, iterate(runtime.meter, self));
  if (items.empty()) return make_undefined("No aggregated item, sequence was empty.");
  size_t best = 0;
  ASSIGN_OR_RETURN(Value best_key, sort_key(runtime, items[0], a[1], a.flag(0, false)));
  for (size_t i = 1; i < items.size(); ++i) {
    ASSIGN_OR_RETURN(Value key, sort_key(runtime, items[i], a[1], a.flag(0, false)));
    ASSIGN_OR_RETURN(const int order, compare(runtime.meter, key, best_key));
    if (largest ? order <= 0 : order >= 0) continue;
    best = i;
    best_key = std::move(key);
  }
  return items[best];
}

Answer filter_min(Runtime& runtime, const Value& self, const Args& args) {
  return extreme(runtime, self, args, false);
}
Answer filter_max(Runtime& runtime, const Value& self, const Args& args) {
  return extreme(runtime, self, args, true);
}

Answer filter_sum(Runtime& runtime, const Value& self, const Args& args) {
  ASSIGN_OR_RETURN(const Bound a, Bound::match("sum", args, {"attribute", "start"}));
  ASSIGN_OR_RETURN(const Items items, iterate(runtime.meter, self));
  Value total = a.has(1) ? *a[1] : Value::integer(0);
  for (const Value& item : items) {
    Value addend = item;
    if (a.has(0) && !a[0]->is(Kind::kNone)) {
      ASSIGN_OR_RETURN(addend, get_path(runtime, item, *a[0]));
    }
    if (!addend.is_number() || !total.is_number()) {
      return base::error(Code::kInvalidArgument, "sum: cannot add '{}'", type_name(addend));
    }
    int64_t whole = 0;
    if (!total.is_integral() || !addend.is_integral()) {
      total = Value::real(total.as_real() + addend.as_real());
    } else if (!__builtin_add_overflow(total.as_int(), addend.as_int(), &whole)) {
      total = Value::integer(whole);
    } else {
      return base::error(Code::kUnsupported, "sum: an integer beyond 64 bits");
    }
  }
  return total;
}

Args rest_of(const Args& args, size_t skipped) {
  Args rest;
  rest.positional.assign(args.positional.begin() + static_cast<ptrdiff_t>(skipped),
                         args.positional.end());
  rest.named = args.named;
  return rest;
}

Answer filter_map(Runtime& runtime, const Value& self, const Args& args) {
  if (!truth(self)) return generator(runtime, {});  // none too
  ASSIGN_OR_RETURN(const Items items, iterate(runtime.meter, self));
  const Value* attribute = nullptr;
  const Value* otherwise = nullptr;
  Builtin function = nullptr;
  Args rest;
  if (args.positional.empty()) {
    for (const auto& [name, value] : args.named) {
      if (name == "attribute") attribute = &value;
      if (name == "default") otherwise = &value;
    }
    if (attribute == nullptr)
      return base::error(Code::kInvalidArgument, "map requires a filter argument");
  } else {
    if (!args.positional[0].is_string())
      return base::error(Code::kInvalidArgument, "map: the filter must be named");
    function = find_filter(args.positional[0].text());
    if (function == nullptr) {
      return base::error(Code::kUnsupported, "the filter '{}' is not supported",
                         args.positional[0].text());
    }
    rest = rest_of(args, 1);
  }
  Items result;
  for (const Value& item : items) {
    if (function != nullptr) {
      ASSIGN_OR_RETURN(Value mapped, function(runtime, item, rest));
      result.push_back(std::move(mapped));
      continue;
    }
    ASSIGN_OR_RETURN(Value found, get_path(runtime, item, *attribute));
    if (found.is_undefined() && otherwise != nullptr) found = *otherwise;
    result.push_back(std::move(found));
  }
  return generator(runtime, std::move(result));
}

// select, reject, selectattr and rejectattr: the items whose value, or attribute, passes a test
// (truth without one).
Answer choose(Runtime& runtime, const Value& self, const Args& args, bool keep, bool by_attribute) {
  if (!truth(self)) return generator(runtime, {});  // none too
  ASSIGN_OR_RETURN(const Items items, iterate(runtime.meter, self));
  const size_t test_at = by_attribute ? 1 : 0;
  if (args.positional.size() < test_at)
    return base::error(Code::kInvalidArgument, "selectattr: no attribute was given");
  Builtin test = nullptr;
  Args rest;
  if (args.positional.size() > test_at) {
    const Value& name = args.positional[test_at];
    test = name.is_string() ? find_test(name.text()) : nullptr;
    if (test == nullptr) {
      return base::error(Code::kUnsupported, "the test '{}' is not supported",
                         name.is_string() ? name.text() : type_name(name));
    }
    rest = rest_of(args, test_at + 1);
  }
  Items result;
  for (const Value& item : items) {
    Value subject = item;
    if (by_attribute) {
      ASSIGN_OR_RETURN(subject, get_path(runtime, item, args.positional[0]));
    }
    bool passes = truth(subject);
    if (test != nullptr) {
      ASSIGN_OR_RETURN(const Value answer, test(runtime, subject, rest));
      passes = truth(answer);
    }
    if (passes == keep) result.push_back(item);
  }
  return generator(runtime, std::move(result));
}

Answer filter_select(Runtime& r, const Value& self, const Args& args) {
  return choose(r, self, args, true, false);
}
Answer filter_reject(Runtime& r, const Value& self, const Args& args) {
  return choose(r, self, args, false, false);
}
Answer filter_selectattr(Runtime& r, const Value& self, const Args& args) {
  return choose(r, self, args, true, true);
}
Answer filter_rejectattr(Runtime& r, const Value& self, const Args& args) {
  return choose(r, self, args, false, true);
}

Answer filter_attr(Runtime& runtime, const Value& self, const Args& args) {
  ASSIGN_OR_RETURN(const Bound a, Bound::match("attr", args, {"name"}, 1));
  ASSIGN_OR_RETURN(const std::string_view name, a.text(0, ""));
  if (self.is(Kind::kDict)) {  // attributes only, not items
    ASSIGN_OR_RETURN(Value method, find_method(runtime, self, name));
    return method.is_undefined() ? make_undefined("a dict has no such attribute") : method;
  }
  return get_attribute(runtime, self, name);
}

Answer filter_batch(Runtime& runtime, const Value& self, const Args& args) {
  ASSIGN_OR_RETURN(const Bound a, Bound::match("batch", args, {"linecount", "fill_with"}, 1));
  ASSIGN_OR_RETURN(const int64_t width, a.integer(0, 1));
  if (width < 1 || width > 1'000'000)
    return base::error(Code::kInvalidArgument, "batch: a width of {}", width);
  ASSIGN_OR_RETURN(const Items items, iterate(runtime.meter, self));
  Items rows;
  for (size_t at = 0; at < items.size(); at += static_cast<size_t>(width)) {
    const size_t end = std::min(items.size(), at + static_cast<size_t>(width));
    Items row(items.begin() + static_cast<ptrdiff_t>(at),
              items.begin() + static_cast<ptrdiff_t>(end));
    if (a.has(1) && !a[1]->is(Kind::kNone)) row.resize(static_cast<size_t>(width), *a[1]);
    ASSIGN_OR_RETURN(Value list, make_list(&runtime.meter, std::move(row)));
    rows.push_back(std::move(list));
  }
  return generator(runtime, std::move(rows));
}

Answer filter_groupby(Runtime& runtime, const Value& self, const Args& args) {
  ASSIGN_OR_RETURN(const Bound a,
                   Bound::match("groupby", args, {"attribute", "default", "case_sensitive"}, 1));
  ASSIGN_OR_RETURN(const Items items, iterate(runtime.meter, self));
  Items keys, shown;
  for (const Value& item : items) {
    ASSIGN_OR_RETURN(Value found, get_path(runtime, item, *a[0]));
    if (found.is_undefined() && a.has(1)) found = *a[1];
    ASSIGN_OR_RETURN(Value key, sort_key(runtime, found, nullptr, a.flag(2, false)));
    shown.push_back(std::move(found));
    keys.push_back(std::move(key));
  }
  ASSIGN_OR_RETURN(const auto order, order_of(runtime, keys, false));
  Items groups;
  for (size_t at = 0; at < order.size();) {
    const size_t first = order[at];
    Items members;
    for (; at < order.size(); ++at) {
      ASSIGN_OR_RETURN(const bool same, equal(runtime.meter, keys[first], keys[order[at]]));
      if (!same) break;
      members.push_back(items[order[at]]);
    }
    ASSIGN_OR_RETURN(Value list, make_list(&runtime.meter, std::move(members)));
    ASSIGN_OR_RETURN(Value group, make_list(&runtime.meter, {shown[first], std::move(list)},
                                            List::Flavor::kTuple));
    groups.push_back(std::move(group));
  }
  return make_list(&runtime.meter, std::move(groups));
}

struct Entry {
  std::string_view name;
  Builtin function;
};

constexpr Entry kFilters[] = {
    {"length", filter_length},
    {"count", filter_length},
    {"list", filter_list},
    {"items", filter_items},
    {"join", filter_join},
    {"first", filter_first},
    {"last", filter_last},
    {"reverse", filter_reverse},
    {"sort", filter_sort},
    {"dictsort", filter_dictsort},
    {"unique", filter_unique},
    {"min", filter_min},
    {"max", filter_max},
    {"sum", filter_sum},
    {"map", filter_map},
    {"select", filter_select},
    {"reject", filter_reject},
    {"selectattr", filter_selectattr},
    {"rejectattr", filter_rejectattr},
    {"attr", filter_attr},
    {"batch", filter_batch},
    {"groupby", filter_groupby},
};

}  // namespace

Builtin find_sequence_filter(std::string_view name) {
  for (const Entry& entry : kFilters) {
    if (entry.name == name) return entry.function;
  }
  return nullptr;
}

}  // namespace text::jinja
