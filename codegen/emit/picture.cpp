// layout.svg: the picture of a format in memory, with the styles for light and dark pages.
#include "codegen/picture/picture.hpp"

#include "codegen/emit/emit.hpp"
#include "codegen/picture/canvas.hpp"

namespace narrowcast::codegen {

std::string emit_picture(const Plan& plan) {
  const Picture picture = picture_of(plan);
  Printer printer({});
  printer.print(R"text(
    <svg xmlns="http://www.w3.org/2000/svg" width="$width$" height="$height$" viewBox="0 0 $width$ $height$" role="img">
      <!-- $origin$ -->
      <title>$name$ in memory</title>
      <desc>$summary$ How the data and the scales of a matrix of $rows$ x $columns$ lie in their buffers, with padding, transposition and packing, for both usages.</desc>
      <style>
        text { font: 12px system-ui, "Segoe UI", Helvetica, Arial, sans-serif; fill: #1f2328; }
        .title { font-size: 16px; font-weight: 600; }
        .name { font: 600 12px ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; }
        .tick { font-size: 10px; fill: #59636e; }
        .middle { text-anchor: middle; }
        .end { text-anchor: end; }
        .card { fill: #ffffff; stroke: #d1d9e0; }
        .plate { fill: #ffffff; }
        .rule { fill: #d1d9e0; }
        .frame { fill: none; stroke: #59636e; }
        .byte { fill: none; stroke: #afb8c1; }
        .block00 { fill: #dbe8f7; stroke: #8c959f; }
        .block01 { fill: #fbe5cb; stroke: #8c959f; }
        .block10 { fill: #d8eedd; stroke: #8c959f; }
        .block11 { fill: #e9def3; stroke: #8c959f; }
        .padding { fill: url(#hatch); stroke: #8c959f; }
        .stroke { stroke: #9aa4af; }
        @media (prefers-color-scheme: dark) {
          text { fill: #e6edf3; }
          .tick { fill: #9198a1; }
          .card { fill: #151b23; stroke: #3d444d; }
          .plate { fill: #151b23; }
          .rule { fill: #3d444d; }
          .frame { stroke: #9198a1; }
          .byte { stroke: #656c76; }
          .block00 { fill: #1e3a5f; }
          .block01 { fill: #5a3f1e; }
          .block10 { fill: #1f4a2e; }
          .block11 { fill: #44305c; }
          .stroke { stroke: #656c76; }
        }
      </style>
      <defs>
        <pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse">
          <path class="stroke" d="M-1,1 L1,-1 M0,6 L6,0 M5,7 L7,5"/>
        </pattern>
      </defs>
      <rect class="card" x="0.5" y="0.5" width="$card_width$" height="$card_height$" rx="8"/>
      $elements$
    </svg>
  )text",
                {{"width", std::to_string(picture.width)},
                 {"height", std::to_string(picture.height)},
                 {"card_width", std::to_string(picture.width - 1)},
                 {"card_height", std::to_string(picture.height - 1)},
                 {"origin", plan.origin},
                 {"name", plan.name},
                 {"summary", xml_text(plan.summary)},
                 {"rows", std::to_string(plan.example.rows)},
                 {"columns", std::to_string(plan.example.columns)},
                 {"elements", picture.elements}});
  return printer.text();
}

}  // namespace narrowcast::codegen
