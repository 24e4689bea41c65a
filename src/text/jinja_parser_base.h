// What the two halves of the parser share: the token stream, nesting limit, names and the list of
// unknown filters.
#pragma once

#include <algorithm>
#include <string>
#include <unordered_map>
#include <vector>

#include "text/jinja_ast.h"
#include "text/jinja_lexer.h"

namespace text::jinja {

class ParserBase {
 protected:
  ParserBase(std::vector<Token> tokens, int32_t depth_max, std::vector<std::string>& names)
      : tokens_(std::move(tokens)), depth_max_(depth_max), names_(names) {}

  const Token& now() const { return tokens_[at_]; }
  const Token& ahead() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  Token take() { return now().type == TokenType::kEnd ? now() : std::move(tokens_[at_++]); }

  bool at_op(std::string_view op) const {
    return now().type == TokenType::kOperator && now().text == op;
  }
  bool at_name(std::string_view name) const {
    return now().type == TokenType::kName && now().text == name;
  }
  bool skip_op(std::string_view op) {
    if (!at_op(op)) return false;
    ++at_;
    return true;
  }
  bool skip_name(std::string_view name) {
    if (!at_name(name)) return false;
    ++at_;
    return true;
  }

  base::Error unexpected(std::string_view expected) const;
  base::Error fail(int32_t line, std::string_view message) const {
    return base::error(base::Code::kInvalidArgument, "template line {}: {}", line, message);
  }
  base::Result<void> expect_op(std::string_view op);
  base::Result<void> expect_name(std::string_view name);
  base::Result<void> expect(TokenType type, std::string_view what);

  // Counts one level of nesting while alive.
  class Level {
   public:
    explicit Level(ParserBase& parser) : parser_(parser) { ++parser_.depth_; }
    ~Level() { --parser_.depth_; }

   private:
    ParserBase& parser_;
  };
  base::Result<void> check_depth(int32_t depth) const;

  NameId intern(const std::string& name);

  std::vector<Token> tokens_;
  size_t at_ = 0;
  int32_t depth_max_;
  int32_t depth_ = 0;
  std::vector<std::string>& names_;
  std::unordered_map<std::string, NameId> ids_;
  // Filters and tests that do not exist, not yet known to stand under a condition.
  std::vector<base::Error> missing_;
  std::vector<Stmt*> macros_;  // being parsed, innermost last
};

// Parses expressions.
class ExprParser : protected ParserBase {
 protected:
  using ParserBase::ParserBase;
  using Parsed = base::Result<ExprPtr>;

  Parsed expression();  // with inline if
  Parsed or_expression();
  // `a, b` and the like. In a target only names and literals. `end_name` is a name token that ends
  // the tuple.
  Parsed tuple(bool inline_if, std::string_view end_name, bool parenthesized);
  Parsed target_tuple(std::string_view end_name, bool attributes);
  Parsed filters(ExprPtr node, bool first_without_pipe);
  base::Result<std::unique_ptr<CallArgs>> call_args();

 private:
  Parsed and_expression();
  Parsed not_expression();
  Parsed comparison();
  Parsed sum();
  Parsed concat();
  Parsed product();
  Parsed power();
  Parsed unary(bool with_filters);
  Parsed primary();
  Parsed string_literal();
  Parsed list_literal();
  Parsed dict_literal();
  Parsed postfix(ExprPtr node);
  Parsed subscript(ExprPtr node);
  Parsed subscribed(ExprPtr node, int32_t line);
  Parsed call(ExprPtr node);
  Parsed test(ExprPtr node);
  Parsed target_primary(bool attributes);
  bool at_tuple_end(std::string_view end_name) const;
  void note_name(const std::string& name);

  Parsed make(ExprType type, int32_t line, std::vector<ExprPtr> args, Op op = Op::kAdd,
              std::unique_ptr<CallArgs> call = {});
  Parsed constant(int32_t line, Value value);
};

}  // namespace text::jinja
