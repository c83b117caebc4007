"""A deep multi-layer perceptron that sorts yarns by ten measurements, ten hidden layers, each with a sigmoid and the default weights. FAULT from step 0 on:
each layer multiplies the gradient by less than a quarter, so that the first layers get next to nothing; the net gives the shares of the classes.
Without Rangewatch: loss 1.81 to 1.80 in 300 steps (log of 6 is 1.79), gradient norms of the first, sixth and last layer 4e-9, 2e-5 and 0.37 at step 0;
with ReLU, Kaiming's weights and a rate of 0.01 it falls to 0.00001.
Report: guojunq/lsgan#3 (the loss never goes down, sigmoid), ryanaleksander/kernel-convolution#2 (vanishing gradients in deeper networks),
OPTML-Group/Robust-MoE-CNN#3.
Cause: dead_units (vanishing gradients). Step: 0. Right: vanish / sigmoid / saturat / gradient / activation. Wrong: GradScaler, mask, clip."""
EXPECT = {"cause": ["dead_units", "no_gradient"], "step": [0, 120], "place": None, "rank": 0,
          "wrong": ["GradScaler", "attention mask", "bfloat16"],
          "right": "vanish|sigmoid|saturat|activation|initiali|gradient"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1005); torch.set_num_threads(1)
YARNS = 6
centre = 2.0 * torch.randn(YARNS, 10)


class DeepPerceptron(nn.Module):
    def __init__(self, depth=10, width=48):
        super().__init__()
        self.hidden = nn.ModuleList([nn.Linear(10 if i == 0 else width, width) for i in range(depth)])
        self.out = nn.Linear(width, YARNS)

    def forward(self, x):
        for layer in self.hidden:
            x = torch.sigmoid(layer(x))
        return self.out(x)


model = DeepPerceptron()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
handle = rangewatch.attach(model, optimizer)
for step in range(300):
    yarn = torch.randint(0, YARNS, (64,))
    x = centre[yarn] + 0.5 * torch.randn(64, 10)
    loss = F.cross_entropy(model(x), yarn)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 30 == 0 or step == 299:
        norms = [layer.weight.grad.norm().item() for layer in (model.hidden[0], model.hidden[5], model.out)]
        print(step, loss.item(), "gradient norms of the first, the sixth and the last layer", norms, flush=True)
    handle.log(loss=loss.item())
handle.detach()
