// Statements: what stands between {% and %}.
#include "text/jinja_parser.h"

#include <initializer_list>

#include "text/jinja_parser_base.h"

namespace text::jinja {

using base::Code;

namespace {

constexpr int32_t kBranchesMax = 1000;  // of one if: destroying the chain recurses

class Parser : public ExprParser {
 public:
  Parser(std::vector<Token> tokens, int32_t depth_max, std::vector<std::string>& names)
      : ExprParser(std::move(tokens), depth_max, names) {}

  base::Result<Body> run() {
    ASSIGN_OR_RETURN(Body body, statements({}));
    if (now().type != TokenType::kEnd)
      return fail(now().line, fmt::format("unexpected tag '{}'", now().text));
    if (!missing_.empty()) return missing_[0];
    return body;
  }

 private:
  using Words = std::initializer_list<std::string_view>;
  using StmtPtr = std::unique_ptr<Stmt>;

  bool at_any(Words words) const {
    for (const std::string_view word : words) {
      if (at_name(word)) return true;
    }
    return false;
  }

  static StmtPtr make_stmt(StmtType type, int32_t line) {
    auto stmt = std::make_unique<Stmt>();
    stmt->type = type;
    stmt->line = line;
    return stmt;
  }

  // Statements up to a tag whose word is one of `ends`; the parser then stands on that word.
  base::Result<Body> statements(Words ends) {
    const Level level(*this);
    RETURN_IF_ERROR(check_depth(depth_));
    Body body;
    for (;;) {
      const int32_t line = now().line;
      switch (now().type) {
        case TokenType::kData: {
          StmtPtr stmt = make_stmt(StmtType::kText, line);
          stmt->text = take().text;
          body.push_back(std::move(stmt));
          break;
        }
        case TokenType::kOutputBegin: {
          ++at_;
          StmtPtr stmt = make_stmt(StmtType::kOutput, line);
          ASSIGN_OR_RETURN(stmt->expr, tuple(true, "", false));
          RETURN_IF_ERROR(expect(TokenType::kOutputEnd, "'}}'"));
          body.push_back(std::move(stmt));
          break;
        }
        case TokenType::kBlockBegin: {
          ++at_;
          if (at_any(ends)) return body;
          ASSIGN_OR_RETURN(StmtPtr stmt, statement());
          RETURN_IF_ERROR(expect(TokenType::kBlockEnd, "'%}'"));
          body.push_back(std::move(stmt));
          break;
        }
        default:
          if (ends.size() == 0) return body;
          return unexpected(fmt::format("a tag '{}'", *(ends.end() - 1)));
      }
    }
  }

  // The body of a tag: from its closing mark to one of `ends`, whose word is taken.
  base::Result<Body> block(Words ends, std::string* end = nullptr) {
    skip_op(":");
    RETURN_IF_ERROR(expect(TokenType::kBlockEnd, "'%}'"));
    ASSIGN_OR_RETURN(Body body, statements(ends));
    const Token word = take();
    if (end != nullptr) *end = word.text;
    return body;
  }

  // A body with variables of its own: what is missing in it is missing even under a condition
  // around it.
  base::Result<Body> scoped_block(Words ends, std::string* end = nullptr) {
    const size_t missing_before = missing_.size();
    ASSIGN_OR_RETURN(Body body, block(ends, end));
    if (missing_.size() > missing_before) return missing_[missing_before];
    return body;
  }

  base::Result<StmtPtr> statement() {
    const int32_t line = now().line;
    if (now().type != TokenType::kName) return unexpected("the name of a tag");
    const std::string word = take().text;
    if (word == "for") return for_loop(line);
    if (word == "if") return conditional(line);
    if (word == "set") return assignment(line);
    if (word == "macro") return macro(line);
    if (word == "call") return call_block(line);
    if (word == "filter") return filter_block(line);
    if (word == "with") return with_block(line);
    if (word == "break" || word == "continue") {
      if (loops_ == 0) return fail(line, fmt::format("'{}' outside of a loop", word));
      return make_stmt(word == "break" ? StmtType::kBreak : StmtType::kContinue, line);
    }
    if (word == "generation") {
      StmtPtr stmt = make_stmt(StmtType::kScope, line);
      ASSIGN_OR_RETURN(stmt->body, scoped_block({"endgeneration"}));
      return stmt;
    }
    if (word == "print") {
      StmtPtr stmt = make_stmt(StmtType::kOutput, line);
      ASSIGN_OR_RETURN(stmt->expr, tuple(true, "", false));
      return stmt;
    }
    for (const std::string_view known :
         {"block", "extends", "include", "import", "from", "autoescape"}) {
      if (word == known)
        return base::error(Code::kUnsupported, "template line {}: the tag '{}' is not supported",
                           line, word);
    }
    return fail(line, fmt::format("unknown tag '{}'", word));
  }

  base::Result<StmtPtr> for_loop(int32_t line) {
    StmtPtr stmt = make_stmt(StmtType::kFor, line);
    ASSIGN_OR_RETURN(stmt->target, target_tuple("in", false));
    RETURN_IF_ERROR(expect_name("in"));
    ASSIGN_OR_RETURN(stmt->expr, tuple(false, "recursive", false));
    if (skip_name("if")) {
      ASSIGN_OR_RETURN(stmt->test, expression());
    }
    stmt->recursive = skip_name("recursive");
    std::string end;
    ++loops_;
    ASSIGN_OR_RETURN(stmt->body, scoped_block({"else", "endfor"}, &end));
    --loops_;
    if (end == "else") {
      ASSIGN_OR_RETURN(stmt->orelse, scoped_block({"endfor"}));
    }
    return stmt;
  }

  base::Result<StmtPtr> conditional(int32_t line) {
    const size_t missing_before = missing_.size();
    StmtPtr first = make_stmt(StmtType::kIf, line);
    // An elif is an if that is all of the branch before's else; the evaluator walks the chain in a
    // loop.
    Stmt* branch = first.get();
    int32_t branches = 0;
    for (std::string end = "elif"; end == "elif";) {
      if (branches++ > 0) {
        if (branches > kBranchesMax)
          return base::error(Code::kTooLarge, "template line {}: too many elif", now().line);
        branch->orelse.push_back(make_stmt(StmtType::kIf, now().line));
        branch = branch->orelse.back().get();
      }
      ASSIGN_OR_RETURN(branch->expr, tuple(false, "", false));
      ASSIGN_OR_RETURN(branch->body, block({"elif", "else", "endif"}, &end));
      if (end == "else") {
        ASSIGN_OR_RETURN(branch->orelse, block({"endif"}));
      }
    }
    missing_.resize(missing_before);
    return first;
  }

  base::Result<StmtPtr> assignment(int32_t line) {
    StmtPtr stmt = make_stmt(StmtType::kSet, line);
    ASSIGN_OR_RETURN(stmt->target, target_tuple("", true));
    if (skip_op("=")) {
      ASSIGN_OR_RETURN(stmt->expr, tuple(true, "", false));
      return stmt;
    }
    stmt->type = StmtType::kSetBlock;
    if (at_op("|")) {
      ASSIGN_OR_RETURN(stmt->expr, filters(nullptr, false));
    }
    ASSIGN_OR_RETURN(stmt->body, scoped_block({"endset"}));
    return stmt;
  }

  base::Result<void> signature(Stmt& stmt) {
    RETURN_IF_ERROR(expect_op("("));
    while (!at_op(")")) {
      if (!stmt.params.empty()) RETURN_IF_ERROR(expect_op(","));
      Param param;
      if (now().type != TokenType::kName) return unexpected("the name of a parameter");
      param.target = std::make_unique<Expr>();
      param.target->type = ExprType::kName;
      param.target->line = now().line;
      param.target->name = intern(take().text);
      if (skip_op("=")) {
        ASSIGN_OR_RETURN(param.value, expression());
      } else if (!stmt.params.empty() && stmt.params.back().value) {
        return fail(stmt.line, "a parameter without default follows one with a default");
      }
      stmt.params.push_back(std::move(param));
    }
    return expect_op(")");
  }

  // Body of a macro or call block: loops around it do not reach inside.
  base::Result<void> macro_body(Stmt& stmt, std::string_view end) {
    macros_.push_back(&stmt);
    const int32_t loops_around = std::exchange(loops_, 0);
    auto body = scoped_block({end});
    loops_ = loops_around;
    macros_.pop_back();
    ASSIGN_OR_RETURN(stmt.body, std::move(body));
    return {};
  }

  base::Result<StmtPtr> macro(int32_t line) {
    StmtPtr stmt = make_stmt(StmtType::kMacro, line);
    if (now().type != TokenType::kName) return unexpected("the name of a macro");
    stmt->text = take().text;
    stmt->name = intern(stmt->text);
    RETURN_IF_ERROR(signature(*stmt));
    RETURN_IF_ERROR(macro_body(*stmt, "endmacro"));
    return stmt;
  }

  base::Result<StmtPtr> call_block(int32_t line) {
    StmtPtr stmt = make_stmt(StmtType::kCall, line);
    stmt->text = "caller";
    if (at_op("(")) RETURN_IF_ERROR(signature(*stmt));
    ASSIGN_OR_RETURN(stmt->expr, expression());
    if (stmt->expr->type != ExprType::kCall) return fail(line, "a call block needs a call");
    RETURN_IF_ERROR(macro_body(*stmt, "endcall"));
    return stmt;
  }

  base::Result<StmtPtr> filter_block(int32_t line) {
    StmtPtr stmt = make_stmt(StmtType::kFilter, line);
    ASSIGN_OR_RETURN(stmt->expr, filters(nullptr, true));
    ASSIGN_OR_RETURN(stmt->body, scoped_block({"endfilter"}));
    return stmt;
  }

  base::Result<StmtPtr> with_block(int32_t line) {
    StmtPtr stmt = make_stmt(StmtType::kWith, line);
    while (now().type != TokenType::kBlockEnd) {
      if (!stmt->params.empty()) RETURN_IF_ERROR(expect_op(","));
      Param param;
      if (now().type != TokenType::kName) return unexpected("a name");
      ASSIGN_OR_RETURN(param.target, target_tuple("", false));
      RETURN_IF_ERROR(expect_op("="));
      ASSIGN_OR_RETURN(param.value, expression());
      stmt->params.push_back(std::move(param));
    }
    ASSIGN_OR_RETURN(stmt->body, scoped_block({"endwith"}));
    return stmt;
  }

  int32_t loops_ = 0;
};

}  // namespace

base::Result<std::unique_ptr<Program>> parse(std::string_view source, int32_t depth_max) {
  ASSIGN_OR_RETURN(std::vector<Token> tokens, tokenize(source));
  auto program = std::make_unique<Program>();
  ASSIGN_OR_RETURN(program->body, Parser(std::move(tokens), depth_max, program->names).run());
  return program;
}

}  // namespace text::jinja
