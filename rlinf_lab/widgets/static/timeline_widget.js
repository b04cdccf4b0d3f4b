// anywidget entry: a timeline alone. One store per model, shared by its views.
import { connect, make } from "./base.js";
import { Store } from "./store.js";
import { TimelineView } from "./timeline.js";

export default () => {
  const store = new Store(), views = new Set();
  return {
    initialize({ model }) {
      connect(model, {
        reset: () => store.reset(),
        apply: (message, parts) => {
          if (message.tables) store.setTables(message.tables);
          if (parts.spans) store.addSpans(message.layout, parts.spans);
          if (parts.idle) store.addIdle(parts.idle);
          views.forEach((view) => view.refresh());
        },
      });
    },
    render({ model, el }) {
      const root = make("div.standalone", { style: `height:${model.get("height")}px` });
      el.append(root);
      const view = new TimelineView(root, store);
      views.add(view);
      return () => { views.delete(view); view.destroy(); };
    },
  };
};
