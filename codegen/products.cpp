#include "codegen/products.hpp"

#include "codegen/reasons.hpp"
#include "runtime/products/factors.hpp"
#include "runtime/products/kind_of.hpp"
#include "runtime/products/kinds.hpp"

namespace narrowcast::codegen {
namespace {

// With what messages call it.
struct Operand {
  const char* what;
  const Plan* plan;
  bool columnwise;

  ProductOperand in_product() const {
    return {word_of(plan->element), word_of(plan->scale), plan->two_levels,
            columnwise ? mirror(plan->columnwise) : plan->rowwise};
  }
  std::string text() const {
    const std::string usage = columnwise ? "columnwise" : "rowwise";
    return std::string(what) + " " + usage + " (" + std::string(word_of(plan->element)) + ", " +
           scales() + ")";
  }
  std::string scales() const {
    if (spans_tensor(plan->rowwise)) return "one scale";
    return block_text(columnwise ? plan->columnwise : plan->rowwise) + " " +
           std::string(word_of(plan->scale));
  }
};

Product product_of(const Operand& a, const Operand& b) {
  const nc_product_kind kind = kind_of(a.in_product(), b.in_product());
  const std::string operands = a.text() + " by " + b.text();
  if (kind == NC_DECODED) return {kind, operands + ": no matrix unit multiplies these."};
  return {kind, operands + ": " + kProductKinds[kind].name + "."};
}

// The plan that a name stands for; nothing, and a diagnostic, if there is none that can be cast to.
const Plan* partner(const Field<std::string>& name, const char* key, const Plan& plan,
                    const Plans& known, Diagnostics& diagnostics) {
  if (!name.known()) return nullptr;
  const Plan* found = &plan;
  if (name.value != kSelf && name.value != plan.name) {
    const auto place = known.find(name.value);
    if (place == known.end()) {
      std::vector<std::string_view> names{kSelf};
      for (const auto& [other, unused] : known) names.push_back(other);
      diagnostics.add(name.at,
                      std::string("matmul.") + key + " names no format: " + in_quotes(name.value) +
                          did_you_mean(name.value, names, "\""),
                      "\"self\", a format that comes with narrowcast, or one whose spec is given "
                      "along with this one");
      return nullptr;
    }
    found = &place->second;
  }
  if (!found->delayed_amax) return found;
  diagnostics.add(name.at,
                  std::string("matmul.") + key + " cannot be " + in_quotes(found->name) +
                      ", whose scale comes from a history",
                  "activations and gradients are cast once each, and have none; name a format with "
                  "amax \"current\"");
  return nullptr;
}

}  // namespace

ProductPlan products_of(const Format& format, const Plan& plan, const Plans& known,
                        Diagnostics& diagnostics) {
  ProductPlan products{};
  if (!format.has_products) return products;
  const Products& said = format.products;
  const Plan* input = partner(said.input, "input", plan, known, diagnostics);
  const Plan* gradient = partner(said.gradient, "gradient", plan, known, diagnostics);
  if (input == nullptr || gradient == nullptr) return products;
  products.input = input->name;
  products.gradient = gradient->name;
  products.stochastic_gradient = said.gradient_rounding.value == Rounding::kStochastic;
  const auto operand = [&](const Factor& factor) -> Operand {
    constexpr const char* kWords[Factor::kCount] = {"weight", "input", "gradient"};
    const Plan* plans[Factor::kCount] = {&plan, input, gradient};
    return {kWords[factor.of], plans[factor.of], factor.columnwise};
  };
  for (size_t i = 0; i < NC_PRODUCT_COUNT; ++i)
    products.product[i] = product_of(operand(kFactors[i][0]), operand(kFactors[i][1]));
  return products;
}

}  // namespace narrowcast::codegen
