// anywidget entry: a timeline alone, or two laid over each other. One set of stores per model, shared by its views.
import { connect, make } from "./base.js";
import { Store, applyTo } from "./store.js";
import { TimelineView } from "./timeline.js";

export default () => {
  const stores = [], views = new Set();
  return {
    initialize({ model }) {
      stores.push(...model.get("labels").map(() => new Store()));
      connect(model, {
        reset: () => stores.forEach((store) => store.reset()),
        apply: (message, parts) => { applyTo(stores, message, parts); views.forEach((view) => view.refresh()); },
      });
    },
    render({ model, el }) {
      const root = make("div.standalone");
      el.append(root);
      const view = new TimelineView(root, stores, { labels: model.get("labels"), most: model.get("height"), follow: false });
      views.add(view);
      return () => { views.delete(view); view.destroy(); };
    },
  };
};
