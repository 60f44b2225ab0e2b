// Plain SVG, piece by piece: boxes and lines of text in whole pixels, styled by class.
#pragma once

#include <string>
#include <string_view>

namespace narrowcast::codegen {

struct Area {
  int x, y, width, height;
};

class Canvas {
 public:
  // A box, with what a reader is told who points at it if `title` is not empty.
  void box(std::string_view style, Area area, std::string_view title = {});

  // A box with text in its middle.
  void cell(std::string_view style, Area area, std::string_view text_style, std::string_view text);

  // Text from x on, along the line y.
  void text(std::string_view style, int x, int y, std::string_view text);

  // Text around the middle of an area.
  void label(std::string_view style, Area area, std::string_view text);

  // What follows belongs together, until close().
  void open(std::string_view title);
  void close();

  // What is drawn between the two stands on one line of the document.
  void open_line();
  void close_line();

  // A line each, or as open_line() has it, without the last line break.
  const std::string& elements() const { return elements_; }

 private:
  void add(const std::string& element);

  std::string elements_, margin_;
  int open_lines_ = 0;
  bool begins_line_ = true;
};

// Text as XML has it.
std::string xml_text(std::string_view text);

}  // namespace narrowcast::codegen
