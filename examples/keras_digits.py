"""Compiled Keras models on scikit-learn's digits: they bring their loss and metrics, and need no other function.

python keras_digits.py
"""

import keras
from keras import layers

import regatta


def model_fn(config):
    model = keras.Sequential(
        [
            keras.Input((64,)),
            layers.Dense(config["hidden"], activation="relu"),
            layers.BatchNormalization(),
            layers.Dropout(0.2),
            layers.Dense(10),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(config["lr"]), loss=loss, metrics=["accuracy"])
    return model


data = regatta.Dataset.digits(partitions=2)
space = regatta.search.grid(hidden=[32, 64], lr=[1e-2, 1e-3], batch_size=64)
sweep = regatta.Sweep(data, space, model_fn, metric="accuracy", epochs=2)

if __name__ == "__main__":
    print(sweep.launch().best)
