"""scikit-learn's ``partial_fit`` on its hand-written digits: one process, checkpoints, resumes, obeys SIGUSR1."""

from training import Checkpoints, arguments, batch, data_set, train

# The line above sets the number of threads, which numpy reads when it is imported.
# isort: split
import numpy as np
from sklearn.linear_model import SGDClassifier


def main():
    """Train; see ``--help``."""
    parser = arguments(__doc__, iterations=300)
    parser.add_argument("--batch-size", type=int, default=64)
    options = parser.parse_args()
    features, labels = data_set("digits")
    classes = np.unique(labels)
    model = SGDClassifier(loss="log_loss", alpha=1e-4, random_state=options.seed)
    # The first call makes the model's arrays; a checkpoint then takes their place.
    model.partial_fit(features[:1], labels[:1], classes=classes)
    done, saved = Checkpoints().load()
    if saved is not None:
        model.coef_[:], model.intercept_[:], model.t_ = saved["coef"], saved["intercept"], float(saved["t"])

    def step(iteration):
        rows = batch(len(labels), options.batch_size, options.seed, iteration)
        model.partial_fit(features[rows], labels[rows])
        return 1.0 - model.score(features[rows], labels[rows])

    print(f"digits: from iteration {done}", flush=True)
    train(options, step, lambda: {"coef": model.coef_, "intercept": model.intercept_, "t": model.t_}, done)


if __name__ == "__main__":
    main()
