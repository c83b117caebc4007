"""A SIREN with w0 = 30 fits an image of stripes: sines of large arguments, first layer's weights of another size than the others', a full batch each step.
HEALTHY: the loss goes down in steps and in waves. Without Rangewatch: loss 0.46 to 8e-5."""
EXPECT = {"healthy": True}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(127); torch.set_num_threads(1)


class Sine(nn.Module):
    def __init__(self, i, o, first=False):
        super().__init__()
        self.linear = nn.Linear(i, o)
        bound = 1 / i if first else (6 / i) ** 0.5 / 30
        nn.init.uniform_(self.linear.weight, -bound, bound)

    def forward(self, x):
        return (30 * self.linear(x)).sin()


model = nn.Sequential(Sine(2, 64, True), Sine(64, 64), Sine(64, 64), nn.Linear(64, 1))
nn.init.uniform_(model[3].weight, -(6 / 64) ** 0.5 / 30, (6 / 64) ** 0.5 / 30)
line = torch.linspace(-1, 1, 32)
at = torch.stack(torch.meshgrid(line, line, indexing="ij"), -1).view(-1, 2)
wanted = ((9 * at[:, :1] + 4 * at[:, 1:]).sin() * (1 + (7 * at[:, 1:]).cos()) / 1.4)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)
watch = rangewatch.attach(model, optimizer)
for step in range(200):
    loss = F.mse_loss(model(at), wanted)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    watch.log(loss=loss.item())
    if step % 20 == 0 or step == 199:
        print(step, round(loss.item(), 5))
