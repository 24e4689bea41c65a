#include "apps/calibration_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

namespace apps {
namespace {

constexpr const char* kWords[] = {
    "amber",   "anvil",   "apron",   "badger",  "barley",  "basalt", "beacon", "birch",
    "bishop",  "blanket", "bonnet",  "bracken", "bramble", "bronze", "bucket", "candle",
    "canyon",  "caravan", "cedar",   "cellar",  "chisel",  "cinder", "clover", "cobalt",
    "copper",  "cottage", "crater",  "crimson", "dagger",  "dapple", "desert", "ember",
    "falcon",  "feather", "fennel",  "fiddle",  "flint",   "galley", "garnet", "ginger",
    "glacier", "gravel",  "hammer",  "harbor",  "hazel",   "heron",  "hollow", "indigo",
    "ivory",   "jasper",  "kettle",  "ladder",  "lantern", "lichen", "magnet", "marble",
    "meadow",  "nettle",  "orchard", "pebble",  "quarry",  "raven",  "saddle", "thistle"};
constexpr const char* kPeople[] = {"The miller",  "A young clerk",  "Her uncle",    "The captain",
                                   "Our teacher", "An old sailor",  "The gardener", "My neighbour",
                                   "The judge",   "A tired nurse",  "The baker",    "His sister",
                                   "The printer", "A quiet farmer", "The engineer", "The widow"};
constexpr const char* kDeeds[] = {
    "carried",  "mended",  "painted", "forgot",    "described", "sold",    "borrowed", "measured",
    "polished", "dropped", "hid",     "inspected", "repaired",  "wrapped", "counted",  "returned"};
constexpr const char* kThings[] = {
    "a box of nails", "the brass clock", "three letters",     "the wooden gate",
    "a jar of honey", "the blue coat",   "some old maps",     "the church bell",
    "a heavy chain",  "the small boat",  "a bundle of reeds", "the broken wheel",
    "a bag of flour", "the iron stove",  "two lanterns",      "the long ladder"};
constexpr const char* kPlaces[] = {
    "near the river",          "behind the mill",        "on the market square",
    "at the edge of the wood", "in the upper room",      "beside the old wall",
    "under the bridge",        "in front of the school", "along the north road",
    "close to the harbour",    "inside the barn",        "by the town well"};
constexpr const char* kTimes[] = {
    "early on Monday",    "before the rain came",  "when the bells rang",  "late in the autumn",
    "after the long war", "while others slept",    "on the second of May", "as the sun went down",
    "during the harvest", "without saying a word", "for the third time",   "in spite of the cold"};

template <size_t N>
const char* pick(const char* const (&list)[N], CalibrationRandom& random) {
  return list[random.below(N)];
}

std::string characters(const char* alphabet, size_t size, int count, CalibrationRandom& random) {
  std::string text;
  for (int i = 0; i < count; ++i) text += alphabet[random.below(size)];
  return text;
}
std::string digits(int count, CalibrationRandom& random) {
  return characters("0123456789", 10, count, random);
}
std::string hexits(int count, CalibrationRandom& random) {
  return characters("0123456789abcdef", 16, count, random);
}
std::string capitals(int count, CalibrationRandom& random) {
  return characters("ABCDEFGHIJKLMNOPQRSTUVWXYZ", 26, count, random);
}
std::string two_words(const char* between, CalibrationRandom& random) {
  const std::string first = pick(kWords, random);
  return first + between + pick(kWords, random);
}

std::string sentence(CalibrationRandom& random) {
  const std::string who = pick(kPeople, random), did = pick(kDeeds, random),
                    what = pick(kThings, random), where = pick(kPlaces, random),
                    when = pick(kTimes, random);
  switch (random.below(3)) {
    case 0:
      return fmt::format("{} {} {} {} {}.", who, did, what, where, when);
    case 1:
      return fmt::format("{} {} {} {}, and nobody asked why.", who, did, what, when);
    default:
      return fmt::format("It was {} that {} {} {}.", where, who, did, what);
  }
}

struct Fact {
  std::vector<std::string> statements;  // in their order
  std::string question, answer;
};

Fact magic_fact(CalibrationRandom& random) {
  const bool is_number = random.below(2) == 0;
  const std::string what = is_number ? "number" : "word", key = two_words("-", random);
  const std::string value = is_number ? digits(7, random) : two_words("-", random);
  return {{fmt::format("One of the special magic {}s for {} is: {}.", what, key, value)},
          fmt::format("What is the special magic {0} for {1} mentioned in the provided text? The "
                      "special magic {0} for {1} mentioned in the provided text is",
                      what, key),
          " " + value};
}

Fact secret_fact(CalibrationRandom& random) {
  const char* const nouns[] = {"code", "color", "name", "address", "title", "city", "animal"};
  const std::string noun = pick(nouns, random), key = two_words("-", random);
  const std::string value = random.below(2) == 0 ? two_words(" ", random) : digits(7, random);
  return {{fmt::format("The secret {} of {} is {}.", noun, key, value)},
          fmt::format("Question: what is the secret {} of {}? Answer:", noun, key),
          " " + value};
}

Fact pass_key_fact(CalibrationRandom& random) {
  const std::string key = two_words("-", random), value = digits(5, random);
  return {{fmt::format("The pass key for {0} is {1}. Remember it. {1} is the pass key for {0}.",
                       key, value)},
          fmt::format("What is the pass key for {0}? The pass key for {0} is", key),
          " " + value};
}

Fact table_fact(CalibrationRandom& random) {
  const std::string key = hexits(8, random), value = hexits(8, random);
  return {{fmt::format("\"{}\": \"{}\",", key, value)},
          fmt::format("The value of \"{}\" is", key),
          fmt::format(" \"{}\"", value)};
}

Fact variable_fact(CalibrationRandom& random) {
  const std::string first = capitals(5, random), second = capitals(5, random);
  const std::string value = digits(5, random);
  Fact fact{{fmt::format("VAR {} = {}", first, value)}, "", " " + value};
  const bool is_direct = random.below(2) == 0;
  if (!is_direct) fact.statements.push_back(fmt::format("VAR {} = VAR {}", second, first));
  fact.question = fmt::format("The value of VAR {} is", is_direct ? first : second);
  return fact;
}

Fact make_fact(CalibrationRandom& random) {
  constexpr Fact (*kMakers[])(CalibrationRandom&) = {magic_fact,    secret_fact,   magic_fact,
                                                     pass_key_fact, variable_fact, table_fact};
  return kMakers[random.below(std::size(kMakers))](random);
}

// Lines of a file from some place on and round, or made-up sentences.
class Filler {
 public:
  Filler(std::span<const std::string> lines, CalibrationRandom& random)
      : lines_(lines), random_(random), at_(lines.empty() ? 0 : random.below(lines.size())) {}
  std::string line() {
    if (lines_.empty()) {
      const std::string first = sentence(random_);
      return first + " " + sentence(random_);
    }
    return lines_[at_++ % lines_.size()];
  }

 private:
  std::span<const std::string> lines_;
  CalibrationRandom& random_;
  size_t at_;
};

constexpr text::EncodeOptions kPlain{.add_special = false, .parse_special = false};

// The long text: filler with the statements of `facts` at depths drawn at random, in their order.
std::string plant(const text::Tokenizer& tokenizer, Filler filler, std::span<const Fact> facts,
                  int32_t context_tokens, CalibrationRandom& random) {
  std::vector<std::pair<double, std::string>> planted;
  int64_t have = 0;
  for (const Fact& fact : facts) {
    std::vector<double> depths;
    for (size_t i = 0; i < fact.statements.size(); ++i) depths.push_back(0.9 * random.uniform());
    std::sort(depths.begin(), depths.end());
    for (size_t i = 0; i < depths.size(); ++i) planted.emplace_back(depths[i], fact.statements[i]);
    for (const std::string& s : fact.statements) have += std::ssize(tokenizer.encode(s, kPlain));
  }
  std::sort(planted.begin(), planted.end());
  std::string text;
  size_t next = 0;
  const int64_t fill = std::max<int64_t>(context_tokens - have, 1);
  for (int64_t filled = 0; filled < fill;) {
    const double depth = static_cast<double>(filled) / static_cast<double>(fill);
    for (; next < planted.size() && planted[next].first <= depth; ++next)
      text += planted[next].second + "\n";
    const std::string line = filler.line();
    filled += std::ssize(tokenizer.encode(line, kPlain)) + 1;
    text += line + "\n";
  }
  for (; next < planted.size(); ++next) text += planted[next].second + "\n";
  return text;
}

}  // namespace

uint64_t CalibrationRandom::next() {
  state_ += 0x9E3779B97F4A7C15;
  uint64_t x = state_;
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9;
  x = (x ^ x >> 27) * 0x94D049BB133111EB;
  return x ^ x >> 31;
}

CalibrationDocument make_calibration_document(const text::Tokenizer& tokenizer,
                                              std::span<const std::string> filler,
                                              int32_t context_tokens, int32_t questions,
                                              CalibrationRandom* random) {
  std::vector<Fact> facts;
  for (int32_t i = 0; i < questions; ++i) facts.push_back(make_fact(*random));
  CalibrationDocument document;
  document.tokens =
      tokenizer.encode(plant(tokenizer, Filler(filler, *random), facts, context_tokens, *random),
                       {.add_special = true, .parse_special = false});
  document.questions_begin = static_cast<int32_t>(document.tokens.size());
  for (const Fact& fact : facts) {
    const std::vector<core::TokenId> asked = tokenizer.encode(fact.question, kPlain);
    const std::vector<core::TokenId> both =
        tokenizer.encode(fact.question + fact.answer + "\n", kPlain);
    const std::vector<core::TokenId> all_but_newline =
        tokenizer.encode(fact.question + fact.answer, kPlain);
    const int32_t base = static_cast<int32_t>(document.tokens.size());
    // A token may reach over the border: what both have in common is the question.
    const auto begin = std::ranges::mismatch(asked, both).in2 - both.begin();
    const auto end = std::ranges::mismatch(all_but_newline, both).in2 - both.begin();
    document.answers.push_back(
        {base + static_cast<int32_t>(begin), base + static_cast<int32_t>(end)});
    document.tokens.insert(document.tokens.end(), both.begin(), both.end());
  }
  return document;
}

}  // namespace apps
