#include "codegen/picture/canvas.hpp"

#include "codegen/printer.hpp"

namespace narrowcast::codegen {
namespace {

constexpr int kBelowMiddle = 4;  // from the middle of a line of text to its foot

}  // namespace

void Canvas::box(std::string_view style, Area area, std::string_view title) {
  const std::string tip = title.empty() ? "" : "<title>" + xml_text(title) + "</title>";
  add(fill(R"(<rect class="$class$" x="$x$" y="$y$" width="$width$" height="$height$"$end$)",
           {{"class", std::string(style)},
            {"x", std::to_string(area.x)},
            {"y", std::to_string(area.y)},
            {"width", std::to_string(area.width)},
            {"height", std::to_string(area.height)},
            {"end", tip.empty() ? "/>" : ">" + tip + "</rect>"}}));
}

void Canvas::text(std::string_view style, int x, int y, std::string_view text) {
  const std::string styled = style.empty() ? "" : "class=\"" + std::string(style) + "\" ";
  add(fill(R"(<text $class$x="$x$" y="$y$">$text$</text>)", {{"class", styled},
                                                             {"x", std::to_string(x)},
                                                             {"y", std::to_string(y)},
                                                             {"text", xml_text(text)}}));
}

void Canvas::label(std::string_view style, Area area, std::string_view text) {
  const std::string middle = style.empty() ? "middle" : "middle " + std::string(style);
  this->text(middle, area.x + area.width / 2, area.y + area.height / 2 + kBelowMiddle, text);
}

void Canvas::open(std::string_view title) {
  add("<g>");
  margin_ += "  ";
  add("<title>" + xml_text(title) + "</title>");
}

void Canvas::close() {
  margin_.resize(margin_.size() - 2);
  add("</g>");
}

void Canvas::cell(std::string_view style, Area area, std::string_view text_style,
                  std::string_view text) {
  open_line();
  box(style, area);
  label(text_style, area, text);
  close_line();
}

void Canvas::open_line() { ++open_lines_; }

void Canvas::close_line() {
  --open_lines_;
  if (open_lines_ == 0) begins_line_ = true;
}

void Canvas::add(const std::string& element) {
  if (begins_line_ && !elements_.empty()) elements_ += "\n" + margin_;
  elements_ += element;
  begins_line_ = open_lines_ == 0;
}

std::string xml_text(std::string_view text) {
  std::string result;
  for (const char c : text) {
    switch (c) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '"':
        result += "&quot;";
        break;
      default:
        result += c;
    }
  }
  return result;
}

}  // namespace narrowcast::codegen
