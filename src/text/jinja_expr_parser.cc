// Expressions, by recursive descent: one function a level of precedence.
#include <optional>

#include "text/jinja_parser_base.h"

namespace text::jinja {

using base::Code;

base::Error ParserBase::unexpected(std::string_view expected) const {
  std::string_view found = now().text;
  if (now().type == TokenType::kEnd) found = "end of template";
  if (now().type == TokenType::kBlockEnd || now().type == TokenType::kOutputEnd)
    found = "end of tag";
  return base::error(Code::kInvalidArgument, "template line {}: expected {}, found '{}'",
                     now().line, expected, found.substr(0, 60));
}

base::Result<void> ParserBase::expect_op(std::string_view op) {
  if (!skip_op(op)) return unexpected(fmt::format("'{}'", op));
  return {};
}

base::Result<void> ParserBase::expect_name(std::string_view name) {
  if (!skip_name(name)) return unexpected(fmt::format("'{}'", name));
  return {};
}

base::Result<void> ParserBase::expect(TokenType type, std::string_view what) {
  if (now().type != type) return unexpected(what);
  if (type != TokenType::kEnd) ++at_;
  return {};
}

base::Result<void> ParserBase::check_depth(int32_t depth) const {
  if (depth <= depth_max_) return {};
  return base::error(Code::kTooLarge, "template line {}: nested deeper than {} levels", now().line,
                     depth_max_);
}

NameId ParserBase::intern(const std::string& name) {
  const auto [entry, added] = ids_.try_emplace(name, static_cast<NameId>(names_.size()));
  if (added) names_.push_back(name);
  return entry->second;
}

void ExprParser::note_name(const std::string& name) {
  for (Stmt* macro : macros_) {
    macro->uses_varargs |= name == "varargs";
    macro->uses_kwargs |= name == "kwargs";
    macro->uses_caller |= name == "caller";
  }
}

ExprParser::Parsed ExprParser::make(ExprType type, int32_t line, std::vector<ExprPtr> args, Op op,
                                    std::unique_ptr<CallArgs> call) {
  auto node = std::make_unique<Expr>();
  node->type = type;
  node->line = line;
  node->op = op;
  const auto raise = [&](const ExprPtr& child) {
    if (child) node->height = std::max(node->height, child->height + 1);
  };
  for (const ExprPtr& arg : args) raise(arg);
  if (call) {
    for (const ExprPtr& arg : call->positional) raise(arg);
    for (const auto& [name, arg] : call->named) raise(arg);
    raise(call->star);
    raise(call->star_star);
  }
  node->args = std::move(args);
  node->call = std::move(call);
  RETURN_IF_ERROR(check_depth(node->height));
  return node;
}

namespace {

std::vector<ExprPtr> children(ExprPtr a, ExprPtr b = nullptr) {
  std::vector<ExprPtr> result;
  result.push_back(std::move(a));
  if (b) result.push_back(std::move(b));
  return result;
}

}  // namespace

ExprParser::Parsed ExprParser::constant(int32_t line, Value value) {
  ASSIGN_OR_RETURN(ExprPtr node, make(ExprType::kConst, line, {}));
  node->value = std::move(value);
  return node;
}

ExprParser::Parsed ExprParser::expression() {
  const Level level(*this);
  RETURN_IF_ERROR(check_depth(depth_));
  const int32_t line = now().line;
  const size_t missing_before = missing_.size();
  ASSIGN_OR_RETURN(ExprPtr node, or_expression());
  while (skip_name("if")) {
    std::vector<ExprPtr> args = children(std::move(node));
    ASSIGN_OR_RETURN(ExprPtr condition, or_expression());
    args.push_back(std::move(condition));
    ExprPtr otherwise;
    if (skip_name("else")) {
      ASSIGN_OR_RETURN(otherwise, expression());
    }
    args.push_back(std::move(otherwise));
    missing_.resize(missing_before);
    ASSIGN_OR_RETURN(node, make(ExprType::kIfElse, line, std::move(args)));
  }
  return node;
}

ExprParser::Parsed ExprParser::or_expression() {
  const int32_t line = now().line;
  ASSIGN_OR_RETURN(ExprPtr left, and_expression());
  while (skip_name("or")) {
    ASSIGN_OR_RETURN(ExprPtr right, and_expression());
    ASSIGN_OR_RETURN(left, make(ExprType::kOr, line, children(std::move(left), std::move(right))));
  }
  return left;
}

ExprParser::Parsed ExprParser::and_expression() {
  const int32_t line = now().line;
  ASSIGN_OR_RETURN(ExprPtr left, not_expression());
  while (skip_name("and")) {
    ASSIGN_OR_RETURN(ExprPtr right, not_expression());
    ASSIGN_OR_RETURN(left, make(ExprType::kAnd, line, children(std::move(left), std::move(right))));
  }
  return left;
}

ExprParser::Parsed ExprParser::not_expression() {
  if (!at_name("not")) return comparison();
  const Level level(*this);
  RETURN_IF_ERROR(check_depth(depth_));
  const int32_t line = take().line;
  ASSIGN_OR_RETURN(ExprPtr node, not_expression());
  return make(ExprType::kUnary, line, children(std::move(node)), Op::kNot);
}

namespace {

std::optional<Op> comparison_op(std::string_view text) {
  if (text == "==") return Op::kEq;
  if (text == "!=") return Op::kNe;
  if (text == "<") return Op::kLt;
  if (text == "<=") return Op::kLe;
  if (text == ">") return Op::kGt;
  if (text == ">=") return Op::kGe;
  return std::nullopt;
}

}  // namespace

ExprParser::Parsed ExprParser::comparison() {
  const int32_t line = now().line;
  ASSIGN_OR_RETURN(ExprPtr first, sum());
  std::vector<ExprPtr> args = children(std::move(first));
  std::vector<Op> ops;
  for (;;) {
    std::optional<Op> op;
    if (now().type == TokenType::kOperator) op = comparison_op(now().text);
    if (at_name("in")) op = Op::kIn;
    if (at_name("not") && ahead().type == TokenType::kName && ahead().text == "in") {
      op = Op::kNotIn;
      ++at_;
    }
    if (!op) break;
    ++at_;
    ops.push_back(*op);
    ASSIGN_OR_RETURN(ExprPtr next, sum());
    args.push_back(std::move(next));
  }
  if (ops.empty()) return std::move(args[0]);
  ASSIGN_OR_RETURN(ExprPtr node, make(ExprType::kCompare, line, std::move(args)));
  node->ops = std::move(ops);
  return node;
}

ExprParser::Parsed ExprParser::sum() {
  const int32_t line = now().line;
  ASSIGN_OR_RETURN(ExprPtr left, concat());
  while (at_op("+") || at_op("-")) {
    const Op op = take().text == "+" ? Op::kAdd : Op::kSub;
    ASSIGN_OR_RETURN(ExprPtr right, concat());
    ASSIGN_OR_RETURN(
        left, make(ExprType::kBinary, line, children(std::move(left), std::move(right)), op));
  }
  return left;
}

ExprParser::Parsed ExprParser::concat() {
  const int32_t line = now().line;
  ASSIGN_OR_RETURN(ExprPtr first, product());
  if (!at_op("~")) return first;
  std::vector<ExprPtr> args = children(std::move(first));
  while (skip_op("~")) {
    ASSIGN_OR_RETURN(ExprPtr next, product());
    args.push_back(std::move(next));
  }
  return make(ExprType::kConcat, line, std::move(args));
}

ExprParser::Parsed ExprParser::product() {
  const int32_t line = now().line;
  ASSIGN_OR_RETURN(ExprPtr left, power());
  for (;;) {
    Op op;
    if (at_op("*")) {
      op = Op::kMul;
    } else if (at_op("/")) {
      op = Op::kDiv;
    } else if (at_op("//")) {
      op = Op::kFloorDiv;
    } else if (at_op("%")) {
      op = Op::kMod;
    } else {
      return left;
    }
    ++at_;
    ASSIGN_OR_RETURN(ExprPtr right, power());
    ASSIGN_OR_RETURN(
        left, make(ExprType::kBinary, line, children(std::move(left), std::move(right)), op));
  }
}

ExprParser::Parsed ExprParser::power() {
  const int32_t line = now().line;
  ASSIGN_OR_RETURN(ExprPtr left, unary(true));
  while (skip_op("**")) {
    ASSIGN_OR_RETURN(ExprPtr right, unary(true));
    ASSIGN_OR_RETURN(
        left, make(ExprType::kBinary, line, children(std::move(left), std::move(right)), Op::kPow));
  }
  return left;
}

ExprParser::Parsed ExprParser::unary(bool with_filters) {
  ExprPtr node;
  if (at_op("-") || at_op("+")) {
    const Level level(*this);
    RETURN_IF_ERROR(check_depth(depth_));
    const Token sign = take();
    ASSIGN_OR_RETURN(ExprPtr operand, unary(false));
    const Op op = sign.text == "-" ? Op::kSub : Op::kAdd;
    ASSIGN_OR_RETURN(node, make(ExprType::kUnary, sign.line, children(std::move(operand)), op));
  } else {
    ASSIGN_OR_RETURN(node, primary());
  }
  ASSIGN_OR_RETURN(node, postfix(std::move(node)));
  if (!with_filters) return node;
  return filters(std::move(node), false);
}

ExprParser::Parsed ExprParser::primary() {
  const int32_t line = now().line;
  switch (now().type) {
    case TokenType::kInt:
      return constant(line, Value::integer(take().integer));
    case TokenType::kFloat:
      return constant(line, Value::real(take().real));
    case TokenType::kString:
      return string_literal();
    case TokenType::kName: {
      const Token token = take();
      const std::string& name = token.text;
      if (name == "true" || name == "True") return constant(line, Value::boolean(true));
      if (name == "false" || name == "False") return constant(line, Value::boolean(false));
      if (name == "none" || name == "None") return constant(line, Value::none());
      ASSIGN_OR_RETURN(ExprPtr node, make(ExprType::kName, line, {}));
      node->name = intern(name);
      note_name(name);
      return node;
    }
    case TokenType::kOperator:
      break;
    default:
      return unexpected("an expression");
  }
  if (skip_op("(")) {
    ASSIGN_OR_RETURN(ExprPtr node, tuple(true, "", true));
    RETURN_IF_ERROR(expect_op(")"));
    return node;
  }
  if (at_op("[")) return list_literal();
  if (at_op("{")) return dict_literal();
  return unexpected("an expression");
}

// Adjacent literals are one string.
ExprParser::Parsed ExprParser::string_literal() {
  const int32_t line = now().line;
  std::string text;
  while (now().type == TokenType::kString) text += take().text;
  ASSIGN_OR_RETURN(Value value, make_string(nullptr, std::move(text)));
  return constant(line, std::move(value));
}

ExprParser::Parsed ExprParser::list_literal() {
  const int32_t line = take().line;
  std::vector<ExprPtr> items;
  while (!at_op("]")) {
    if (!items.empty()) RETURN_IF_ERROR(expect_op(","));
    if (at_op("]")) break;
    ASSIGN_OR_RETURN(ExprPtr item, expression());
    items.push_back(std::move(item));
  }
  RETURN_IF_ERROR(expect_op("]"));
  return make(ExprType::kList, line, std::move(items));
}

ExprParser::Parsed ExprParser::dict_literal() {
  const int32_t line = take().line;
  std::vector<ExprPtr> items;
  while (!at_op("}")) {
    if (!items.empty()) RETURN_IF_ERROR(expect_op(","));
    if (at_op("}")) break;
    ASSIGN_OR_RETURN(ExprPtr key, expression());
    RETURN_IF_ERROR(expect_op(":"));
    ASSIGN_OR_RETURN(ExprPtr value, expression());
    items.push_back(std::move(key));
    items.push_back(std::move(value));
  }
  RETURN_IF_ERROR(expect_op("}"));
  return make(ExprType::kDict, line, std::move(items));
}

bool ExprParser::at_tuple_end(std::string_view end_name) const {
  if (now().type == TokenType::kOutputEnd || now().type == TokenType::kBlockEnd || at_op(")"))
    return true;
  return !end_name.empty() && at_name(end_name);
}

ExprParser::Parsed ExprParser::tuple(bool inline_if, std::string_view end_name,
                                     bool parenthesized) {
  const int32_t line = now().line;
  std::vector<ExprPtr> items;
  bool is_tuple = false;
  for (;;) {
    if (!items.empty()) RETURN_IF_ERROR(expect_op(","));
    if (at_tuple_end(end_name)) break;
    ASSIGN_OR_RETURN(ExprPtr item, inline_if ? expression() : or_expression());
    items.push_back(std::move(item));
    if (!at_op(",")) break;
    is_tuple = true;
  }
  if (!is_tuple) {
    if (!items.empty()) return std::move(items[0]);
    if (!parenthesized) return unexpected("an expression");
  }
  return make(ExprType::kTuple, line, std::move(items));
}

ExprParser::Parsed ExprParser::target_primary(bool attributes) {
  const int32_t line = now().line;
  if (skip_op("(")) {
    const Level level(*this);
    RETURN_IF_ERROR(check_depth(depth_));
    ASSIGN_OR_RETURN(ExprPtr node, target_tuple("", attributes));
    RETURN_IF_ERROR(expect_op(")"));
    return node;
  }
  if (now().type != TokenType::kName) return unexpected("a name to assign to");
  const Token token = take();
  static constexpr std::string_view kConstants[] = {"true",  "True", "false",
                                                    "False", "none", "None"};
  for (const std::string_view constant_name : kConstants) {
    if (token.text == constant_name)
      return fail(line, fmt::format("'{}' cannot be assigned to", token.text));
  }
  ASSIGN_OR_RETURN(ExprPtr node, make(ExprType::kName, line, {}));
  node->name = intern(token.text);
  if (attributes && skip_op(".")) {
    if (now().type != TokenType::kName) return unexpected("the name of an attribute");
    node->type = ExprType::kNamespaceTarget;
    node->text = take().text;
  }
  return node;
}

ExprParser::Parsed ExprParser::target_tuple(std::string_view end_name, bool attributes) {
  const int32_t line = now().line;
  std::vector<ExprPtr> items;
  bool is_tuple = false;
  for (;;) {
    if (!items.empty()) RETURN_IF_ERROR(expect_op(","));
    if (at_tuple_end(end_name)) break;
    ASSIGN_OR_RETURN(ExprPtr item, target_primary(attributes));
    items.push_back(std::move(item));
    if (!at_op(",")) break;
    is_tuple = true;
  }
  if (items.empty()) return unexpected("a name to assign to");
  if (!is_tuple) return std::move(items[0]);
  return make(ExprType::kTuple, line, std::move(items));
}

ExprParser::Parsed ExprParser::postfix(ExprPtr node) {
  for (;;) {
    if (at_op(".") || at_op("[")) {
      ASSIGN_OR_RETURN(node, subscript(std::move(node)));
    } else if (at_op("(")) {
      ASSIGN_OR_RETURN(node, call(std::move(node)));
    } else {
      return node;
    }
  }
}

ExprParser::Parsed ExprParser::subscript(ExprPtr node) {
  const int32_t line = now().line;
  if (skip_op(".")) {
    if (now().type == TokenType::kInt) {
      ASSIGN_OR_RETURN(ExprPtr key, constant(line, Value::integer(take().integer)));
      return make(ExprType::kItem, line, children(std::move(node), std::move(key)));
    }
    if (now().type != TokenType::kName) return unexpected("the name of an attribute");
    ASSIGN_OR_RETURN(node, make(ExprType::kAttribute, line, children(std::move(node))));
    node->text = take().text;
    return node;
  }
  RETURN_IF_ERROR(expect_op("["));
  ASSIGN_OR_RETURN(node, subscribed(std::move(node), line));
  RETURN_IF_ERROR(expect_op("]"));
  return node;
}

// What stands between the brackets: an index or a slice.
ExprParser::Parsed ExprParser::subscribed(ExprPtr node, int32_t line) {
  ExprPtr begin, end, step;
  if (!at_op(":")) {
    ASSIGN_OR_RETURN(begin, expression());
    if (at_op(","))
      return base::error(Code::kUnsupported, "template line {}: a tuple as index is not supported",
                         line);
    if (!at_op(":"))
      return make(ExprType::kItem, line, children(std::move(node), std::move(begin)));
  }
  RETURN_IF_ERROR(expect_op(":"));
  if (!at_op(":") && !at_op("]")) {
    ASSIGN_OR_RETURN(end, expression());
  }
  if (skip_op(":") && !at_op("]")) {
    ASSIGN_OR_RETURN(step, expression());
  }
  std::vector<ExprPtr> args = children(std::move(node));
  args.push_back(std::move(begin));
  args.push_back(std::move(end));
  args.push_back(std::move(step));
  return make(ExprType::kSlice, line, std::move(args));
}

ExprParser::Parsed ExprParser::call(ExprPtr node) {
  const int32_t line = now().line;
  ASSIGN_OR_RETURN(auto args, call_args());
  return make(ExprType::kCall, line, children(std::move(node)), Op::kAdd, std::move(args));
}

base::Result<std::unique_ptr<CallArgs>> ExprParser::call_args() {
  RETURN_IF_ERROR(expect_op("("));
  auto args = std::make_unique<CallArgs>();
  bool first = true;
  while (!at_op(")")) {
    if (!first) RETURN_IF_ERROR(expect_op(","));
    first = false;
    if (at_op(")")) break;
    const int32_t line = now().line;
    if (skip_op("**")) {
      if (args->star_star) return fail(line, "a second '**' argument");
      ASSIGN_OR_RETURN(args->star_star, expression());
    } else if (args->star_star) {
      return fail(line, "an argument after '**'");
    } else if (skip_op("*")) {
      if (args->star) return fail(line, "a second '*' argument");
      ASSIGN_OR_RETURN(args->star, expression());
    } else if (now().type == TokenType::kName && ahead().type == TokenType::kOperator &&
               ahead().text == "=") {
      const std::string name = take().text;
      ++at_;
      ASSIGN_OR_RETURN(ExprPtr value, expression());
      args->named.emplace_back(name, std::move(value));
    } else {
      if (!args->named.empty() || args->star)
        return fail(line, "a positional argument after named ones");
      ASSIGN_OR_RETURN(ExprPtr value, expression());
      args->positional.push_back(std::move(value));
    }
  }
  RETURN_IF_ERROR(expect_op(")"));
  return args;
}

ExprParser::Parsed ExprParser::filters(ExprPtr node, bool first_without_pipe) {
  for (bool bare = first_without_pipe;; bare = false) {
    if (bare || at_op("|")) {
      const int32_t line = now().line;
      if (!bare) ++at_;
      if (now().type != TokenType::kName) return unexpected("the name of a filter");
      std::string name = take().text;
      while (at_op(".") && ahead().type == TokenType::kName) {
        ++at_;
        name += '.';
        name += take().text;
      }
      std::unique_ptr<CallArgs> args;
      if (at_op("(")) {
        ASSIGN_OR_RETURN(args, call_args());
      }
      std::vector<ExprPtr> operand;
      operand.push_back(std::move(node));
      ASSIGN_OR_RETURN(
          node, make(ExprType::kFilter, line, std::move(operand), Op::kAdd, std::move(args)));
      node->builtin = find_filter(name);
      node->text = std::move(name);
      if (node->builtin == nullptr) {
        missing_.push_back(base::error(Code::kUnsupported,
                                       "template line {}: the filter '{}' is not supported", line,
                                       node->text));
      }
    } else if (node && at_name("is")) {
      ASSIGN_OR_RETURN(node, test(std::move(node)));
    } else if (node && at_op("(")) {
      ASSIGN_OR_RETURN(node, call(std::move(node)));
    } else {
      return node;
    }
  }
}

ExprParser::Parsed ExprParser::test(ExprPtr node) {
  const int32_t line = take().line;
  const bool negated = skip_name("not");
  if (now().type != TokenType::kName) return unexpected("the name of a test");
  const std::string name = take().text;
  std::unique_ptr<CallArgs> args;
  const bool literal = now().type == TokenType::kName || now().type == TokenType::kString ||
                       now().type == TokenType::kInt || now().type == TokenType::kFloat ||
                       at_op("[") || at_op("{");
  if (at_op("(")) {
    ASSIGN_OR_RETURN(args, call_args());
  } else if (literal && !at_name("else") && !at_name("or") && !at_name("and")) {
    if (at_name("is")) return fail(line, "tests cannot be chained with 'is'");
    ASSIGN_OR_RETURN(ExprPtr argument, primary());
    ASSIGN_OR_RETURN(argument, postfix(std::move(argument)));
    args = std::make_unique<CallArgs>();
    args->positional.push_back(std::move(argument));
  }
  ASSIGN_OR_RETURN(
      node, make(ExprType::kTest, line, children(std::move(node)), Op::kAdd, std::move(args)));
  node->builtin = find_test(name);
  node->text = name;
  if (node->builtin == nullptr) {
    missing_.push_back(base::error(Code::kUnsupported,
                                   "template line {}: the test '{}' is not supported", line, name));
  }
  if (!negated) return node;
  return make(ExprType::kUnary, line, children(std::move(node)), Op::kNot);
}

}  // namespace text::jinja
