// test.cpp: the format's golden bytes, and the program that tests whether a plugin makes them.
#include <bit>

#include "codegen/cpp_text.hpp"
#include "codegen/emit/emit.hpp"
#include "codegen/golden.hpp"

namespace narrowcast::codegen {
namespace {

constexpr size_t kDigitsALine = 92;  // 46 bytes

constexpr const char* kBufferNames[NC_BUFFER_COUNT] = {"Rowwise", "RowwiseScale", "Columnwise",
                                                       "ColumnwiseScale"};

std::string constants(const GoldenBytes& golden, const std::string& prefix) {
  std::string text;
  for (size_t i = 0; i < NC_BUFFER_COUNT; ++i) {
    text += "constexpr char " + prefix + kBufferNames[i] + "[] =";
    const std::string digits = hexadecimal(golden.buffers[i]);
    for (size_t at = 0; at == 0 || at < digits.size(); at += kDigitsALine)
      text += "\n    \"" + digits.substr(at, kDigitsALine) + '"';
    text += ";\n";
  }
  return text;
}

std::string golden_case(const GoldenBytes& golden, const std::string& prefix) {
  return fill(R"text(
    constexpr golden::Bytes $prefix$ = {
        .matrix = {$rows$, $columns$, $infinities$},
        .buffer = {$prefix$Rowwise, $prefix$RowwiseScale, $prefix$Columnwise, $prefix$ColumnwiseScale},
        .amax = 0x$amax$,
        .decoded = {0x$rowwise$, 0x$columnwise$},
    };
  )text",
              {{"prefix", prefix},
               {"rows", std::to_string(golden.matrix.rows)},
               {"columns", std::to_string(golden.matrix.columns)},
               {"infinities", golden.matrix.infinities ? "true" : "false"},
               {"amax", hexadecimal(std::bit_cast<uint32_t>(golden.amax), 8)},
               {"rowwise", hexadecimal(golden.decoded[0], 16)},
               {"columnwise", hexadecimal(golden.decoded[1], 16)}});
}

}  // namespace

std::string emit_test(const Plan& plan) {
  Printer printer = cpp_file(plan, "The golden bytes of " + plan.name + ", frozen with its name.");
  std::string cases;
  for (const GoldenBytes& golden : golden_bytes(plan)) {
    const std::string prefix = golden.matrix.infinities ? "kExtreme" : "kFinite";
    cases += constants(golden, prefix) + golden_case(golden, prefix) + "\n\n";
  }
  cases.resize(cases.size() - 2);
  printer.print(R"text(
    #include "runtime/golden/test_main.hpp"

    namespace narrowcast::$namespace$ {
    namespace {

    $cases$

    }  // namespace
    }  // namespace narrowcast::$namespace$

    int main(int argc, char** argv) {
      using namespace narrowcast::$namespace$;
      return narrowcast::golden::test_main(argc, argv, {kFinite, kExtreme});
    }
  )text",
                {{"cases", cases}});
  return printer.text();
}

}  // namespace narrowcast::codegen
