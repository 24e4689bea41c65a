// Expressions, calls and macros.
#include "text/jinja_evaluator.h"
#include "text/jinja_operators.h"

namespace text::jinja {

using base::Code;

namespace {

constexpr int64_t kEvalWork = 48;  // of one node, in bytes looked at

}  // namespace

base::Result<void> Evaluator::Level::check() const {
  if (evaluator_.depth_ <= evaluator_.limits_.depth) return {};
  return base::error(Code::kTooLarge, "the chat template is nested deeper than {} levels",
                     evaluator_.limits_.depth);
}

base::Result<Value> Evaluator::eval(const Expr& expr) {
  switch (expr.type) {  // the leaves, without the cost of a level
    case ExprType::kConst:
      return expr.value;
    case ExprType::kName:
      return eval_name(expr);
    default:
      break;
  }
  const Level level(*this);
  RETURN_IF_ERROR(level.check());
  RETURN_IF_ERROR(spend(runtime_.meter, kEvalWork));
  return eval_kind(expr);
}

base::Result<Value> Evaluator::eval_kind(const Expr& expr) {
  const auto at_line = [&](base::Result<Value> result) {
    return result.ok() ? std::move(result)
                       : base::Result<Value>(located(expr.line, std::move(result).error()));
  };
  switch (expr.type) {
    case ExprType::kConst:
      return expr.value;
    case ExprType::kName:
      return eval_name(expr);
    case ExprType::kAttribute: {
      ASSIGN_OR_RETURN(const Value value, eval(*expr.args[0]));
      return at_line(get_attribute(runtime_, value, expr.text));
    }
    case ExprType::kItem: {
      ASSIGN_OR_RETURN(const Value value, eval(*expr.args[0]));
      ASSIGN_OR_RETURN(const Value key, eval(*expr.args[1]));
      return at_line(get_item(runtime_, value, key));
    }
    case ExprType::kSlice:
      return eval_slice(expr);
    case ExprType::kCall:
      return call(expr, nullptr);
    case ExprType::kFilter:
    case ExprType::kTest:
      return eval_builtin(expr);
    case ExprType::kList:
    case ExprType::kTuple:
      return eval_sequence(expr);
    case ExprType::kDict:
      return eval_dict(expr);
    case ExprType::kUnary: {
      ASSIGN_OR_RETURN(const Value value, eval(*expr.args[0]));
      return at_line(apply_unary(expr.op, value));
    }
    case ExprType::kBinary: {
      ASSIGN_OR_RETURN(const Value left, eval(*expr.args[0]));
      ASSIGN_OR_RETURN(const Value right, eval(*expr.args[1]));
      return at_line(apply_binary(runtime_, expr.op, left, right));
    }
    case ExprType::kConcat:
      return eval_concat(expr);
    case ExprType::kCompare:
      return eval_compare(expr);
    case ExprType::kAnd:
    case ExprType::kOr: {
      ASSIGN_OR_RETURN(Value left, eval(*expr.args[0]));
      if (truth(left) == (expr.type == ExprType::kOr)) return left;
      return eval(*expr.args[1]);
    }
    case ExprType::kIfElse: {
      ASSIGN_OR_RETURN(const Value condition, eval(*expr.args[1]));
      if (truth(condition)) return eval(*expr.args[0]);
      if (expr.args[2]) return eval(*expr.args[2]);
      return make_undefined(
          "the inline if-expression evaluated to false and no else section was defined");
    }
    case ExprType::kNamespaceTarget:
      break;
  }
  return base::error(Code::kInternal, "an expression of unknown kind");
}

base::Result<Value> Evaluator::eval_name(const Expr& expr) {
  RETURN_IF_ERROR(spend(runtime_.meter, kEvalWork / 2));
  if (const Value* found = find_value(scope_.get(), expr.name); found != nullptr) return *found;
  const std::string& name = program_.names[static_cast<size_t>(expr.name)];
  const Builtin function = find_function(name);
  if (function == nullptr) return make_undefined(fmt::format("'{}' is undefined", name));
  auto object = std::make_shared<Callable>();
  object->name = name;
  object->function = function;
  return Value(Kind::kCallable, std::move(object));
}

base::Result<Value> Evaluator::eval_compare(const Expr& expr) {
  ASSIGN_OR_RETURN(Value left, eval(*expr.args[0]));
  for (size_t i = 0; i < expr.ops.size(); ++i) {
    ASSIGN_OR_RETURN(Value right, eval(*expr.args[i + 1]));
    auto holds = apply_compare(runtime_, expr.ops[i], left, right);
    if (!holds.ok()) return located(expr.line, std::move(holds).error());
    if (!*holds) return Value::boolean(false);
    left = std::move(right);
  }
  return Value::boolean(true);
}

base::Result<Value> Evaluator::eval_concat(const Expr& expr) {
  Builder out(runtime_.meter);
  for (const ExprPtr& arg : expr.args) {
    ASSIGN_OR_RETURN(const Value value, eval(*arg));
    if (value.is_string()) {
      out.add(value.text());
      continue;
    }
    auto text = to_text(runtime_.meter, value);
    if (!text.ok()) return located(expr.line, std::move(text).error());
    out.add(*text);
  }
  return std::move(out).finish();
}

base::Result<Value> Evaluator::eval_sequence(const Expr& expr) {
  std::vector<Value> items;
  items.reserve(expr.args.size());
  for (const ExprPtr& arg : expr.args) {
    ASSIGN_OR_RETURN(Value item, eval(*arg));
    items.push_back(std::move(item));
  }
  const bool tuple = expr.type == ExprType::kTuple;
  return make_list(&runtime_.meter, std::move(items),
                   tuple ? List::Flavor::kTuple : List::Flavor::kList);
}

base::Result<Value> Evaluator::eval_dict(const Expr& expr) {
  Dict dict;
  for (size_t i = 0; i < expr.args.size(); i += 2) {
    ASSIGN_OR_RETURN(Value key, eval(*expr.args[i]));
    ASSIGN_OR_RETURN(Value value, eval(*expr.args[i + 1]));
    auto found = find_key(runtime_.meter, dict, key);
    if (!found.ok()) return located(expr.line, std::move(found).error());
    if (*found != nullptr) {
      *const_cast<Value*>(*found) = std::move(value);
    } else {
      dict.items.emplace_back(std::move(key), std::move(value));
    }
  }
  return make_dict(&runtime_.meter, std::move(dict.items));
}

base::Result<Value> Evaluator::eval_slice(const Expr& expr) {
  ASSIGN_OR_RETURN(const Value value, eval(*expr.args[0]));
  Value bounds[3] = {Value::none(), Value::none(), Value::none()};
  for (size_t i = 0; i < 3; ++i) {
    if (!expr.args[i + 1]) continue;
    ASSIGN_OR_RETURN(bounds[i], eval(*expr.args[i + 1]));
  }
  auto result = slice(runtime_, value, bounds);
  if (!result.ok()) return located(expr.line, std::move(result).error());
  return result;
}

base::Result<Value> Evaluator::eval_builtin(const Expr& expr) {
  Value subject;
  if (expr.args[0]) {
    ASSIGN_OR_RETURN(subject, eval(*expr.args[0]));
  } else if (block_text_ != nullptr) {
    subject = *block_text_;
  }
  if (expr.builtin == nullptr) {
    return base::error(Code::kUnsupported, "template line {}: the {} '{}' is not supported",
                       expr.line, expr.type == ExprType::kTest ? "test" : "filter", expr.text);
  }
  // The arguments are no part of the block that is filtered.
  const Value* const block = std::exchange(block_text_, nullptr);
  auto args = eval_args(expr.call.get());
  block_text_ = block;
  if (!args.ok()) return std::move(args).error();
  auto result = expr.builtin(runtime_, subject, *args);
  if (!result.ok()) return located(expr.line, std::move(result).error());
  return result;
}

base::Result<Args> Evaluator::eval_args(const CallArgs* call) {
  Args args;
  if (call == nullptr) return args;
  for (const ExprPtr& arg : call->positional) {
    ASSIGN_OR_RETURN(Value value, eval(*arg));
    args.positional.push_back(std::move(value));
  }
  for (const auto& [name, arg] : call->named) {
    ASSIGN_OR_RETURN(Value value, eval(*arg));
    args.named.emplace_back(name, std::move(value));
  }
  if (call->star) {
    ASSIGN_OR_RETURN(const Value more, eval(*call->star));
    ASSIGN_OR_RETURN(std::vector<Value> items, iterate(runtime_.meter, more));
    for (Value& item : items) args.positional.push_back(std::move(item));
  }
  if (call->star_star) {
    ASSIGN_OR_RETURN(const Value more, eval(*call->star_star));
    if (!more.is(Kind::kDict))
      return base::error(Code::kInvalidArgument, "the argument after ** must be a mapping");
    RETURN_IF_ERROR(spend(runtime_.meter, static_cast<int64_t>(more.dict().items.size() * 64)));
    for (const auto& [key, value] : more.dict().items) {
      if (!key.is_string()) return base::error(Code::kInvalidArgument, "keywords must be strings");
      args.named.emplace_back(std::string(key.text()), value);
    }
  }
  return args;
}

base::Result<Value> Evaluator::call(const Expr& expr, const Value* caller) {
  ASSIGN_OR_RETURN(const Value callee, eval(*expr.args[0]));
  ASSIGN_OR_RETURN(Args args, eval_args(expr.call.get()));
  if (caller != nullptr) args.named.emplace_back("caller", *caller);
  if (callee.is_undefined()) return located(expr.line, undefined_error(callee));
  if (callee.is(Kind::kLoop)) return call_loop(callee.loop(), args);
  if (!callee.is(Kind::kCallable)) {
    return located(expr.line, base::error(Code::kInvalidArgument, "'{}' object is not callable",
                                          type_name(callee)));
  }
  const Callable& callable = callee.callable();
  if (callable.macro != nullptr) return call_macro(callable, std::move(args));
  auto result = callable.function(runtime_, callable.self, args);
  // raise_exception speaks for the template's author: its message stays as it is.
  const bool raised = callable.self.is_undefined() && callable.name == "raise_exception";
  if (!result.ok() && !raised) return located(expr.line, std::move(result).error());
  return result;
}

base::Result<Value> Evaluator::make_macro(const Stmt& stmt) {
  auto object = std::make_shared<Callable>();
  object->name = stmt.text;
  object->macro = &stmt;
  object->scope = scope_.get();
  if (captured_.empty() || captured_.back() != scope_) captured_.push_back(scope_);
  RETURN_IF_ERROR(charge(&runtime_.meter, *object, static_cast<int64_t>(sizeof(Scope))));
  return Value(Kind::kCallable, std::move(object));
}

base::Result<Value> Evaluator::call_macro(const Callable& callable, Args args) {
  RETURN_IF_ERROR(count_iteration());
  const Stmt& macro = *static_cast<const Stmt*>(callable.macro);
  const ScopeGuard guard(*this, static_cast<Scope*>(callable.scope)->shared_from_this());
  RETURN_IF_ERROR(bind_params(macro, std::move(args)));
  Flow flow = Flow::kNext;
  return capture(macro.body, &flow);
}

base::Result<void> Evaluator::bind_params(const Stmt& macro, Args args) {
  const auto wrong = [&](std::string_view what, std::string_view name) {
    return base::error(Code::kInvalidArgument, "template line {}: macro '{}' {}{}", macro.line,
                       macro.text, what, name);
  };
  const size_t count = macro.params.size();
  std::vector<std::pair<std::string, Value>> named;
  std::vector<const Value*> given(count, nullptr);
  for (size_t i = 0; i < std::min(count, args.positional.size()); ++i)
    given[i] = &args.positional[i];
  Value caller = make_undefined("no caller defined");
  for (auto& [name, value] : args.named) {
    size_t index = 0;
    while (index < count &&
           program_.names[static_cast<size_t>(macro.params[index].target->name)] != name)
      ++index;
    if (index < count && given[index] == nullptr) {
      given[index] = &value;
    } else if (name == "caller" && macro.uses_caller) {
      caller = value;
    } else if (macro.uses_kwargs) {
      named.emplace_back(name, value);
    } else {
      return wrong("takes no keyword argument ", name);
    }
  }
  if (args.positional.size() > count && !macro.uses_varargs)
    return wrong("was given too many arguments", "");
  // A default may use the parameters before it.
  for (size_t i = 0; i < count; ++i) {
    const Param& param = macro.params[i];
    Value value =
        make_undefined(fmt::format("parameter '{}' was not provided",
                                   program_.names[static_cast<size_t>(param.target->name)]));
    if (given[i] != nullptr) {
      value = *given[i];
    } else if (param.value) {
      ASSIGN_OR_RETURN(value, eval(*param.value));
    }
    set_name(param.target->name, std::move(value));
  }
  if (macro.uses_caller) set_name(caller_name_, std::move(caller));
  if (macro.uses_kwargs) {
    std::vector<std::pair<Value, Value>> items;
    for (auto& [name, value] : named) {
      ASSIGN_OR_RETURN(Value key, make_string(&runtime_.meter, name));
      items.emplace_back(std::move(key), std::move(value));
    }
    ASSIGN_OR_RETURN(Value dict, make_dict(&runtime_.meter, std::move(items)));
    set_name(kwargs_name_, std::move(dict));
  }
  if (macro.uses_varargs) {
    std::vector<Value> rest;
    for (size_t i = count; i < args.positional.size(); ++i) rest.push_back(args.positional[i]);
    ASSIGN_OR_RETURN(Value tuple,
                     make_list(&runtime_.meter, std::move(rest), List::Flavor::kTuple));
    set_name(varargs_name_, std::move(tuple));
  }
  return {};
}

// loop(items) inside a recursive loop: the loop's own output for other items.
base::Result<Value> Evaluator::call_loop(const Loop& loop, const Args& args) {
  const auto scope = std::static_pointer_cast<Scope>(loop.scope.lock());
  if (loop.node == nullptr || scope == nullptr || args.positional.size() != 1 ||
      !args.named.empty()) {
    return base::error(
        Code::kInvalidArgument,
        "a loop can be called with one argument, and only where it says 'recursive'");
  }
  const Level level(*this);
  RETURN_IF_ERROR(level.check());
  const ScopeGuard guard(*this, scope);
  std::string text;
  std::string* const outer = std::exchange(out_, &text);
  auto result = run_loop(*static_cast<const Stmt*>(loop.node), args.positional[0], loop.level + 1);
  out_ = outer;
  runtime_.meter.live_bytes -= static_cast<int64_t>(text.size());
  if (!result.ok()) return std::move(result).error();
  return make_string(&runtime_.meter, std::move(text));
}

}  // namespace text::jinja
