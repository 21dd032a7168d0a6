// Walks with regions under a mixture of products: weights divide by the masses of the two sides of a region.
#pragma once
#include "walk.hpp"

template <class Family>
class ProductRegions : public RegionWalk<Family> {
  public:
    ProductRegions(const Walk& walk, const RegionRows& known) : RegionWalk<Family>(walk, known), n(walk.tables.states()) {}

    struct Position : RegionFrames {
        Scratch<double> weight;  // (frames, components)
        explicit Position(const ProductRegions& family)
            : RegionFrames(family.walk.tables), weight(family.walk.tables.depth * family.n) {}
    };

    void place_inside(Position& position, Index root, const Position& outer) const {
        start(position, root, outer.weight.data() + outer.top * n);
    }
    void leave_inside(const Position&) const {}

    // The left part goes to the next frame, the rest stays.
    void divide_region(Position& position, Index top, Index, const double* left, const double* right, double* probabilities) const {
        if (top + 1 >= Index(position.frame.size())) throw std::invalid_argument("a tree is deeper than it should be");
        double* weight = position.weight.data() + top * n;
        double* goes_left = weight + n;
        for (Index k = 0; k < n; ++k) {
            const double both = left[k] + right[k];
            const double moved = both > 0.0 ? weight[k] * (left[k] / both) : 0.0;
            goes_left[k] = moved;
            weight[k] -= moved;
        }
        probabilities[0] = sum(goes_left, n), probabilities[1] = sum(weight, n);
    }
    void enter_side(Position& position, Index top, Index, const double*, bool right) const {
        double* weight = position.weight.data() + top * n;
        if (right) copy(weight + n, weight, n);
    }
    void leave_split(const Position&, Index, Index) const {}  // the frame above still has what arrived

  protected:
    // Start at root, with these weights in one frame.
    void start(Position& position, Index root, const double* weights) const {
        copy(position.weight.data(), weights, n);
        position.start(root, sum(weights, n));
    }
    Index n;
};
