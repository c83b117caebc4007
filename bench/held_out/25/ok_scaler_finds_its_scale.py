"""A recurrent cell by hand in float16 autocast whose GradScaler begins at 2^26 and looks for its scale. HEALTHY: the first steps overflow and are skipped, the
scale is halved till it fits; it doubles again every 40 good steps, with a skipped step now and then.
Without Rangewatch: loss 0.48 to 0.015; the scale falls from 2^26 to 131072 in nine steps, then moves between 131072 and 524288."""
EXPECT = {"healthy": True}
import torch
from torch import nn
import rangewatch

torch.manual_seed(2535); torch.set_num_threads(1)


class Cell(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.width, self.keep, self.new, self.out = width, nn.Linear(width + 3, width), nn.Linear(width + 3, width), nn.Linear(width, 1)

    def forward(self, x):
        h = torch.zeros(x.shape[0], self.width)
        for t in range(x.shape[1]):
            both = torch.cat((h, x[:, t]), 1)
            k = torch.sigmoid(self.keep(both)).float()
            h = k * h + (1 - k) * torch.tanh(self.new(both)).float()
        return self.out(h)[:, 0]


net = Cell()
optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 26, growth_interval=40)
handle = rangewatch.attach(net, optimizer, scaler=scaler)
for step in range(200):
    x = torch.randn(32, 8, 3)
    y = torch.tanh(x[:, :, 0]).mean(1) * 2 + 0.5 * x[:, -1, 1]
    with torch.autocast("cpu", torch.float16):
        guess = net(x)
    loss = nn.functional.mse_loss(guess.float(), y)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    if step % 20 == 0 or step in (2, 5, 8, 12, 199):
        print(step, loss.item(), "scale", scaler.get_scale(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
